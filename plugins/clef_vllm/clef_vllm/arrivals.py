"""Whether every tensor of a release arrived, and every parameter of the model came from one.

vLLM itself starts without a word when tables or parts of a fused layer are missing, and then answers NaN or nonsense.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from clef_vllm.release import ReleaseError

# vLLM creates KV-cache scales for every attention layer of a quantized model; our releases never carry them, and the
# default of 1.0 is right for a 16-bit cache.
OPTIONAL = re.compile(r"\.attn\.[a-z_]*(k|v|q|prob)_scale$|\.[kvq]_zero_point$")
# Tensors that vLLM leaves out on purpose: the multi-token head, KV-cache scales (see above), derived buffers.
UNUSED = re.compile(r"(^|\.)mtp\.|\.[kvq]_(scale|zero_point)$|\.inv_freq$")


def check_head(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    """Names and shapes of the head file against its configuration."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    wrong = [n for n in wanted if n in found and wanted[n].shape != found[n].shape]
    if missing or extra or wrong:
        raise ReleaseError(
            f"{path} does not fit its configuration: missing {missing[:5]}, unknown {extra[:5]}, "
            f"other shape {wrong[:5]}; download the release again"
        )


def check_loaded(expected: set[str], loaded: set[str]) -> None:
    """Every parameter of the model must have come from a file."""
    missing = sorted(name for name in expected - loaded if not OPTIONAL.search(name))
    if missing:
        raise ReleaseError(
            f"{len(missing)} parameters were not in the release and would stay uninitialized: {', '.join(missing[:8])}"
            f"{' …' if len(missing) > 8 else ''}; download or export the release again"
        )


def check_skipped(wanted: Iterable[str], loaded: set[str], fused: Mapping[str, list[str]], images: bool) -> None:
    """Every tensor of the release must have gone somewhere; vLLM only logs those it has no parameter for.

    wanted: tensor names as vLLM renames them. images: whether the vision tower was built.
    """
    packed = {part: whole for whole, parts in fused.items() for part in parts}

    def parameter(name: str) -> str:
        return ".".join(packed.get(word, word) for word in name.split("."))

    skipped = sorted(
        name for name in wanted
        if name not in loaded and parameter(name) not in loaded and not UNUSED.search(name)
        and (images or not name.startswith("visual."))
    )  # fmt: skip
    if skipped:
        raise ReleaseError(
            f"vLLM has no use for {len(skipped)} tensors of the release: {', '.join(skipped[:8])}"
            f"{' …' if len(skipped) > 8 else ''}; quantization_config in config.json does not say what the shards hold "
            f"(targets or ignore list); export the release again"
        )


class WeightWatch:
    """Sees every checkpoint tensor on its way to vLLM and remembers what the fused layers need."""

    def __init__(self, fused: Mapping[str, list[str]]) -> None:
        self.siblings = {part: parts for parts in fused.values() if len(parts) > 1 for part in parts}
        self.names: set[str] = set()
        self.scales: dict[str, float] = {}

    def observe(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            self.names.add(name)
            if name.endswith("_global_scale"):
                self.scales[name] = float(tensor)
            yield name, tensor

    def check_fused(self) -> None:
        """A fused layer is "loaded" for vLLM as soon as one part was; and it keeps one global scale for all parts."""
        for name in sorted(self.names):
            module, _, tensor = name.rpartition(".")
            parent, _, part = module.rpartition(".")
            for sibling in self.siblings.get(part, []):
                other = f"{parent}.{sibling}.{tensor}"
                if other not in self.names:
                    raise ReleaseError(
                        f"the release has {name} but not {other}; vLLM runs {', '.join(self.siblings[part])} as one "
                        f"layer, so all need the same tensors (one format for all); export the release again"
                    )
                if name in self.scales and self.scales[name] != self.scales[other]:
                    raise ReleaseError(
                        f"{name} is {self.scales[name]:g}, {other} is {self.scales[other]:g}; vLLM runs the two as one "
                        f"layer with one scale, so weights would shrink by up to their ratio. Quantize again with the "
                        f"pair fused, or repair the release with clefquant audit --repair"
                    )
