"""Input statistics of every quantizable linear, from one batched calibration pass without fake quantization.

Padding is left out; tokens counted = tokens encoded. The largest absolute input decides NVFP4's static input scale; the rest
is for people: dead inputs, headroom on other data, outlier layers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.release.artefact import read_json, write_json
from clefquant.release.load import DEFAULT_BATCH_TOKENS, LoadedRelease, batches

KIND = "input statistics"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class InputStatistics:
    """What one linear's input looked like over the calibration set.

    ``amax``: largest absolute value. ``rms``: root mean square. ``dead_channels``: input channels that were never anything
    but zero. ``tokens``: how many token vectors were seen.
    """

    amax: float
    rms: float
    dead_channels: int
    tokens: int


class _Collector:
    """Running statistics of one input; per channel amax [I] and a float64 sum of squares."""

    def __init__(self) -> None:
        self.channel_amax: torch.Tensor | None = None
        self.squares = 0.0
        self.tokens = 0

    def add(self, x: torch.Tensor) -> None:
        """Add token vectors [T, I]."""
        amax = x.abs().amax(dim=0)
        self.channel_amax = amax if self.channel_amax is None else torch.maximum(self.channel_amax, amax)
        self.squares += float(x.double().square().sum())
        self.tokens += x.shape[0]

    def result(self) -> InputStatistics:
        assert self.channel_amax is not None
        count = self.tokens * self.channel_amax.numel()
        return InputStatistics(
            amax=float(self.channel_amax.max()),
            rms=(self.squares / count) ** 0.5,
            dead_channels=int((self.channel_amax == 0).sum()),
            tokens=self.tokens,
        )


@torch.inference_mode()
def collect_statistics(
    loaded: LoadedRelease,
    encoded: Sequence[Any],
    *,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    progress: Progress = SILENT,
) -> dict[str, InputStatistics]:
    """Run the backbone over ``encoded`` (the release's ``EncodedRecord``s) and describe the input of every quantizable linear.

    Linears of one fused group share their input and their figures. Raises InputError on an empty set or NaN inputs.
    """
    if not encoded:
        raise InputError("the calibration set has no records; build one with `clefquant calibrate`.")
    with (
        _collecting(loaded) as (collectors, mask),
        progress.task("calibrating", sum(len(e.input_ids) for e in encoded), "tok") as task,
    ):
        pad = loaded.processor.tokenizer.pad_token_id
        media = [index for index, record in enumerate(encoded) if record.media is not None]
        plain = [index for index, record in enumerate(encoded) if record.media is None]
        groups = [
            [plain[i] for i in group] for group in batches([len(encoded[i].input_ids) for i in plain], batch_tokens)
        ]
        for group in [*groups, *([index] for index in media)]:
            batch = loaded.code.collate_records([encoded[index] for index in group], pad, loaded.device)
            mask.append(batch["attention_mask"].bool())
            text = loaded.model.language_model.model if batch["media"] else loaded.text_model
            text(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                use_cache=False,
                **(batch["media"] or {}),
            )
            mask.clear()
            task.advance(sum(len(encoded[index].input_ids) for index in group))
    found = {}
    for group_names, collector in collectors:
        statistics = collector.result()
        if not statistics.amax < float("inf"):
            raise InputError(
                f"{group_names[0]} received NaN or infinite inputs in calibration; check the source weights."
            )
        found.update(dict.fromkeys(group_names, statistics))
    return found


@contextmanager
def _collecting(loaded: LoadedRelease) -> Iterator[tuple[list[tuple[tuple[str, ...], _Collector]], list[torch.Tensor]]]:
    """Hook the first linear of every fused group; ``mask`` holds the running batch's [B, L] mask of real tokens."""
    collectors: list[tuple[tuple[str, ...], _Collector]] = []
    mask: list[torch.Tensor] = []
    handles = []
    for unit in loaded.release.units:
        for group in unit.groups:
            collector = _Collector()
            collectors.append((tuple(linear.name for linear in group), collector))

            def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], collector: _Collector = collector) -> None:
                collector.add(inputs[0][mask[0]])

            handles.append(loaded.module(group[0].name).register_forward_pre_hook(hook))
    try:
        yield collectors, mask
    finally:
        for handle in handles:
            handle.remove()


def write_statistics(path: Path, statistics: dict[str, InputStatistics], head: dict[str, Any]) -> None:
    """Write ``input_statistics.json`` with the artefact head ``head``."""
    write_json(path, {**head, "linears": {name: asdict(value) for name, value in statistics.items()}})


def read_statistics(path: Path) -> dict[str, InputStatistics]:
    """Read what :func:`write_statistics` wrote."""
    value = read_json(path, KIND, SCHEMA_VERSION)
    return {name: InputStatistics(**entry) for name, entry in value["linears"].items()}
