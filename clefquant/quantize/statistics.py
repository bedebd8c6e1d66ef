"""Input statistics of every quantizable linear, from one batched calibration pass without fake quantization.

Padding is left out; tokens counted = tokens encoded. The largest absolute input decides NVFP4's static input scale;
the rest is for people: dead inputs, headroom on other data, outlier layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.layerwise import Layerwise
from clefquant.quantize.watching import watching
from clefquant.release.artefact import read_json, write_json
from clefquant.release.load import DEFAULT_BATCH_TOKENS
from clefquant.release.release import Release

KIND = "input statistics"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class InputStatistics:
    """What one linear's input looked like over the calibration set.

    ``amax``: largest absolute value. ``rms``: root mean square. ``dead_channels``: input channels that were never
    anything but zero. ``tokens``: how many token vectors were seen.
    """

    amax: float
    rms: float
    dead_channels: int
    tokens: int


class InputCollector:
    """Running statistics of one input; per channel amax [I] and a float64 sum of squares."""

    def __init__(self) -> None:
        """Nothing seen yet."""
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
        """The figures of everything added."""
        assert self.channel_amax is not None
        count = self.tokens * self.channel_amax.numel()
        return InputStatistics(
            amax=float(self.channel_amax.max()),
            rms=(self.squares / count) ** 0.5,
            dead_channels=int((self.channel_amax == 0).sum()),
            tokens=self.tokens,
        )


def collect_statistics(
    release: Release,
    encoded: Sequence[Any],
    *,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    dtype: torch.dtype | None = None,
    progress: Progress = SILENT,
) -> dict[str, InputStatistics]:
    """Run the decoder over ``encoded`` (the release's ``EncodedRecord``s) and describe the input of every
    quantizable linear.

    One layer's weights are in memory at a time. Linears of one fused group share their input and their figures.
    Raises InputError on an empty set, or when an input is NaN or infinite.
    """
    found: dict[str, InputStatistics] = {}
    for step in Layerwise(release, encoded, dtype=dtype, batch_tokens=batch_tokens).steps(progress):
        groups = [group for unit in release.units if unit.layer == step.number for group in unit.groups]
        with watching(step, groups, InputCollector) as collectors:
            step.run()
        for group, collector in zip(groups, collectors, strict=True):
            found.update(dict.fromkeys((linear.name for linear in group), collector.result()))
    check_finite(found)
    return found


def check_finite(found: dict[str, InputStatistics]) -> None:
    """InputError when an input was NaN or infinite."""
    if broken := [name for name, statistics in found.items() if not statistics.amax < float("inf")]:
        raise InputError(f"{broken[0]} received NaN or infinite inputs in calibration; check the source weights.")


def write_statistics(path: Path, statistics: dict[str, InputStatistics], head: dict[str, Any]) -> None:
    """Write ``input_statistics.json`` with the artefact head ``head``."""
    write_json(path, {**head, "linears": {name: asdict(value) for name, value in statistics.items()}})


def read_statistics(path: Path) -> dict[str, InputStatistics]:
    """Read what :func:`write_statistics` wrote."""
    value = read_json(path, KIND, SCHEMA_VERSION)
    return {name: InputStatistics(**entry) for name, entry in value["linears"].items()}


def read_earlier(path: Path, parents: Mapping[str, str]) -> dict[str, InputStatistics] | None:
    """Statistics at ``path`` when they were made from the same ``parents`` (model and calibration set), else None."""
    if not path.is_file() or read_json(path, KIND, SCHEMA_VERSION).get("parents") != dict(parents):
        return None
    return read_statistics(path)
