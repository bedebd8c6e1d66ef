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
from clefquant.quantize.layerwise import LayerStep, Layerwise
from clefquant.quantize.ranks import joined, maximum, total
from clefquant.quantize.watching import by_linear, watching
from clefquant.release.artefact import read_json, write_json
from clefquant.release.release import Release

KIND = "input statistics"
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class InputStatistics:
    """What one linear's input looked like over the calibration set.

    ``amax``: largest absolute value. ``rms``: root mean square. ``token_p50``, ``token_p99``: percentiles over tokens
    of a token's own largest absolute value. ``dead_channels``: input channels that were never anything but zero.
    ``tokens``: how many token vectors were seen.
    """

    amax: float
    rms: float
    token_p50: float
    token_p99: float
    dead_channels: int
    tokens: int


class InputCollector:
    """Running statistics of one input, on its device; nothing waits for the device before :meth:`result`."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._channel_amax: torch.Tensor | None = None
        self._squares: list[torch.Tensor] = []
        self._token_amax: list[torch.Tensor] = []

    def add(self, x: torch.Tensor) -> None:
        """Add token vectors [T, I]."""
        size = x.abs()
        amax = size.amax(dim=0)
        self._channel_amax = amax if self._channel_amax is None else torch.maximum(self._channel_amax, amax)
        self._token_amax.append(size.amax(dim=1))
        self._squares.append(torch.linalg.vector_norm(x, dtype=torch.float64).square())

    def result(self) -> InputStatistics:
        """The figures of everything added, by all processes."""
        assert self._channel_amax is not None
        of_tokens = joined(torch.cat(self._token_amax).float()).sort().values
        squares, dead = total(torch.stack(self._squares).sum()), maximum(self._channel_amax) == 0
        count = len(of_tokens) * len(dead)
        return InputStatistics(
            amax=float(of_tokens[-1]),
            rms=(float(squares) / count) ** 0.5,
            token_p50=float(of_tokens[(len(of_tokens) - 1) // 2]),
            token_p99=float(of_tokens[(len(of_tokens) - 1) * 99 // 100]),
            dead_channels=int(dead.sum()),
            tokens=len(of_tokens),
        )


def collect_statistics(
    release: Release,
    encoded: Sequence[Any],
    *,
    batch_tokens: int | None = None,
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
        found |= layer_statistics(release, step)
    return found


def layer_statistics(release: Release, step: LayerStep) -> dict[str, InputStatistics]:
    """Run every batch through the layer and describe its inputs. InputError when one is NaN or infinite."""
    groups = [group for unit in release.units if unit.layer == step.number for group in unit.groups]
    collectors = [InputCollector() for _ in groups]
    with watching(step, groups, collectors):
        step.run()
    found = by_linear(groups, (collector.result() for collector in collectors))
    check_finite(found)
    return found


def check_finite(found: dict[str, InputStatistics]) -> None:
    """InputError when an input was NaN or infinite."""
    if broken := [name for name, statistics in found.items() if not statistics.amax < float("inf")]:
        raise InputError(f"{broken[0]} received NaN or infinite inputs in calibration; check the source weights.")


def write_statistics(
    path: Path,
    statistics: Mapping[str, InputStatistics],
    head: dict[str, Any],
    headroom: Mapping[str, float | None] | None = None,
) -> None:
    """Write ``input_statistics.json`` with the artefact head ``head``; ``headroom`` as of :mod:`~.remarks`."""
    value = {**head, "linears": {name: asdict(value) for name, value in statistics.items()}}
    write_json(path, value | ({"headroom": dict(headroom)} if headroom else {}))


def read_statistics(path: Path) -> dict[str, InputStatistics]:
    """Read what :func:`write_statistics` wrote."""
    value = read_json(path, KIND, SCHEMA_VERSION)
    return {name: InputStatistics(**entry) for name, entry in value["linears"].items()}


def read_earlier(path: Path, parents: Mapping[str, str]) -> dict[str, InputStatistics] | None:
    """Statistics at ``path`` when they were made from the same ``parents`` (model and calibration set), else None."""
    if not path.is_file():
        return None
    found = read_json(path, KIND, SCHEMA_VERSION)
    if found["schema_version"] != SCHEMA_VERSION or found.get("parents") != dict(parents):
        return None
    return read_statistics(path)
