"""What is checked at start. vLLM itself starts without a word when tables are missing and then answers NaN."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from clef_vllm import __version__, compat
from clef_vllm.layout import ARCHITECTURE, TASK
from clef_vllm.release import MARKER, Release, ReleaseError

# vLLM creates KV-cache scales for every attention layer of a quantized model; our releases never carry them, and the
# default of 1.0 is right for a 16-bit cache.
OPTIONAL = re.compile(r"\.attn\.[a-z_]*(k|v|q|prob)_scale$|\.[kvq]_zero_point$")


def parse_version(text: str) -> tuple[int, ...]:
    """Numbers of a dotted version, "0.2.1" to (0, 2, 1)."""
    if not re.fullmatch(r"\d+(\.\d+)*", text):
        raise ReleaseError(f"{MARKER} is {text!r}, not a version such as 0.1.0; export the release again")
    return tuple(int(part) for part in text.split("."))


def check_marker(release: Release, version: str = __version__) -> None:
    """int8 tables need a plugin that knows them, and a marker that makes every other reader stop."""
    if release.tables and release.marker is None:
        raise ReleaseError(
            f"{release.path} has int8 tables but no {MARKER} in its head configuration: a reader that does not know "
            f"the tables would answer wrongly without an error. This is clef-vllm {version}; export the release again"
        )
    if release.marker is not None and parse_version(release.marker) > parse_version(version):
        raise ReleaseError(
            f"{release.path} needs clef-vllm {release.marker} or newer, this is clef-vllm {version}; "
            f"install the plugin in the release's vllm_plugin/ folder"
        )


def check_architecture(architectures: Any, tasks: Iterable[str] | None = None) -> None:
    """Stock vLLM would read the folder as a text generator, or through a head of its own."""
    if list(architectures or []) != [ARCHITECTURE]:
        raise ReleaseError(
            f"vLLM runs architecture {architectures}, not {ARCHITECTURE}: the override did not take effect and answers "
            f'would not come from the joint head; pass hf_overrides={{"architectures": ["{ARCHITECTURE}"]}}'
        )
    if tasks is not None and TASK not in tasks:
        raise ReleaseError(f"vLLM offers the tasks {sorted(tasks)}, not {TASK}; start it with runner='pooling'")


def check_ranks(config: Any, ranks: int) -> None:
    """vLLM builds a linear-attention layer without heads on some ranks, and fails at the first request only."""
    for name in ("linear_num_key_heads", "linear_num_value_heads", "num_attention_heads"):
        heads = getattr(config, name, 0)
        if heads % ranks:
            raise ReleaseError(
                f"{ranks} tensor-parallel ranks do not divide {name} = {heads}; use a divisor of {heads}"
            )


def check_head(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], release: Release) -> None:
    """Names and shapes of the head file against its configuration."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    wrong = [n for n in wanted if n in found and wanted[n].shape != found[n].shape]
    if missing or extra or wrong:
        raise ReleaseError(
            f"{release.head_weights} does not fit its configuration: missing {missing[:5]}, unknown {extra[:5]}, "
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


def kernel_lines(model: Any) -> list[str]:
    """One line per format: the kernel vLLM chose and whether activations are really quantized."""
    chosen: dict[tuple[str, str], int] = {}
    for module in model.modules():
        scheme = getattr(module, "scheme", None)
        for kernel in compat.scheme_kernels(scheme):
            key = type(scheme).__name__.removeprefix("CompressedTensors"), type(kernel).__name__
            chosen[key] = chosen.get(key, 0) + 1
    if not chosen:
        return ["clef-vllm: no quantized layers"]
    return [f"clef-vllm: {s} on {count} layers: {k} ({describe(k)})" for (s, k), count in sorted(chosen.items())]


def describe(kernel: str) -> str:
    """What a kernel does to the activations, told by its class name."""
    if "Marlin" in kernel or "W4A16" in kernel or "A16" in kernel or "WNA16" in kernel.upper():
        return "weight-only on this device, activations stay 16-bit"
    if "Emulation" in kernel or "Emulated" in kernel:
        return "emulated: exact arithmetic of the format, slow"
    return "weights and activations quantized"
