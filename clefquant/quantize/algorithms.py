"""How weights are rounded: a visible list of algorithms, each a generator of quantized units in layer order.

``rtn`` rounds to nearest after one calibration pass. ``gptq`` corrects each column's rounding error in the columns
after it, by the Hessian of the inputs. ``awq`` scales input channels before it rounds to nearest, so that those with
large inputs lose less; ``awq-mlp`` does so in the MLPs alone. All but ``rtn`` let every layer see what the quantized
layers before it really give.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Protocol

import torch

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.finishing import QuantizedUnit, finish, install, only_seen, owned_units, units_of_layer
from clefquant.quantize.hessian import HessianCollector
from clefquant.quantize.journal import NO_JOURNAL, Journal
from clefquant.quantize.layerwise import Layerwise
from clefquant.quantize.ranks import ranks
from clefquant.quantize.reader import read_layers
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.statistics import InputCollector, InputStatistics, check_finite, layer_statistics
from clefquant.quantize.watching import by_linear, watching
from clefquant.recipes.awq import SMOOTHED, changed_tensors, check_smoothed, smoothed_units
from clefquant.recipes.formats import Format, find_format
from clefquant.recipes.layout import Layout
from clefquant.release.load import default_device
from clefquant.release.release import Release


class Algorithm(Protocol):
    """Quantizes ``release`` by ``layout`` over ``encoded``, the release's ``EncodedRecord``s."""

    def __call__(
        self,
        release: Release,
        layout: Layout,
        encoded: Sequence[Any],
        progress: Progress = SILENT,
        journal: Journal = NO_JOURNAL,
        scales: Scales = DEFAULT_SCALES,
    ) -> Iterator[QuantizedUnit]:
        """Yield every unit once it is finished, in layer order, from where ``journal`` left off."""


def rtn(
    release: Release,
    layout: Layout,
    encoded: Sequence[Any],
    progress: Progress = SILENT,
    journal: Journal = NO_JOURNAL,
    scales: Scales = DEFAULT_SCALES,
) -> Iterator[QuantizedUnit]:
    """Round to nearest. Without records only formats with dynamic inputs can be made."""
    if not encoded:
        yield from to_nearest(release, layout, {}, journal, scales)
        return
    owned = owned_units(release)
    for step in Layerwise(release, encoded).steps(progress, journal):
        statistics = layer_statistics(release, step)
        for unit in units_of_layer(release, step.number):
            mine = unit.name in owned
            yield finish(unit, layout, step.source, statistics, scales) if mine else only_seen(unit, statistics)


def to_nearest(
    release: Release,
    layout: Layout,
    statistics: Mapping[str, InputStatistics],
    journal: Journal = NO_JOURNAL,
    scales: Scales = DEFAULT_SCALES,
) -> Iterator[QuantizedUnit]:
    """Round to nearest with the input statistics of an earlier pass; no record is run."""
    numbers = sorted({unit.layer for unit in release.units})
    device = default_device()
    with closing(read_layers(release, [n for n in numbers if n >= journal.layer], device)) as sources:
        for number, source in sources:
            for unit in units_of_layer(release, number):
                yield finish(unit, layout, source, statistics, scales)
            journal.finish(number, tuple)


def gptq(
    release: Release,
    layout: Layout,
    encoded: Sequence[Any],
    progress: Progress = SILENT,
    journal: Journal = NO_JOURNAL,
    scales: Scales = DEFAULT_SCALES,
) -> Iterator[QuantizedUnit]:
    """GPTQ, layer by layer; layers later than a quantized one are calibrated on its real output."""
    check_algorithm("gptq", bool(encoded))
    for step in Layerwise(release, encoded).steps(progress, journal):
        units = units_of_layer(release, step.number)
        groups = [group for unit in units for group in unit.groups]
        formats = [find_format(layout.units[unit.name]) for unit in units for _ in unit.groups]
        collectors = [_Both(fmt) for fmt in formats]
        with watching(step, groups, collectors):
            step.run()
        statistics = by_linear(groups, (collector.inputs.result() for collector in collectors))
        hessians = by_linear(groups, (collector.hessian.result() for collector in collectors))
        check_finite(statistics)
        changed = False
        for unit in units:
            result = finish(unit, layout, step.source, statistics, scales, hessians)
            install(step, unit, result.linears)
            changed = changed or bool(result.linears)
            yield result
        if changed:
            step.run()


def awq(
    release: Release,
    layout: Layout,
    encoded: Sequence[Any],
    progress: Progress = SILENT,
    journal: Journal = NO_JOURNAL,
    scales: Scales = DEFAULT_SCALES,
    *,
    name: str = "awq",
) -> Iterator[QuantizedUnit]:
    """AWQ of the 4-bit units that ``name`` covers, then rounding to nearest. Statistics are of the scaled inputs."""
    from clefquant.quantize.smoothing import smooth

    check_algorithm(name, bool(encoded))
    check_smoothed(name, release.units, layout.units)
    for step in Layerwise(release, encoded).steps(progress, journal):
        units = units_of_layer(release, step.number)
        smoothed = smoothed_units(name, units, layout.units)
        if smoothed:
            smooth(step, smoothed)
        statistics = layer_statistics(release, step)
        quantized = False
        for unit in units:
            result = finish(unit, layout, step.source, statistics, scales)
            install(step, unit, result.linears)
            quantized = quantized or bool(result.linears)
            changed = changed_tensors(unit) if unit in smoothed else ()
            yield result._replace(changed={tensor: step.source[tensor] for tensor in changed})
        if quantized:
            step.run()


#: Name on the command line to algorithm.
ALGORITHMS: dict[str, Algorithm] = {"rtn": rtn, "gptq": gptq, "awq": awq, "awq-mlp": partial(awq, name="awq-mlp")}


def find_algorithm(name: str) -> Algorithm:
    """The algorithm called ``name``; InputError lists what is allowed."""
    if name not in ALGORITHMS:
        raise InputError(f"unknown algorithm {name!r}; allowed: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def check_algorithm(name: str, has_records: bool) -> None:
    """InputError when the algorithm is unknown, lacks the records it needs, or cannot run in several processes."""
    find_algorithm(name)
    if name in ("gptq", *SMOOTHED) and not has_records:
        raise InputError(f"{name} needs --calibration SET; build one with `clefquant calibrate`.")
    if name in SMOOTHED and ranks().size > 1:
        raise InputError(f"{name} runs in one process: its search needs every record. Start it without torchrun.")


class _Both:
    """Statistics and Hessian of one input."""

    def __init__(self, fmt: Format) -> None:
        self.inputs, self.hessian = InputCollector(), HessianCollector(fmt)

    def add(self, x: torch.Tensor) -> None:
        self.inputs.add(x)
        self.hessian.add(x)
