"""How weights are rounded: a visible list of algorithms, each a generator of quantized units in layer order.

``rtn`` rounds to nearest after one calibration pass. ``gptq`` corrects each column's rounding error in the columns
after it, by the Hessian of the inputs, and lets every layer see what the quantized layers before it really give.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import torch

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.hessian import HessianCollector
from clefquant.quantize.journal import NO_JOURNAL, Journal
from clefquant.quantize.layerwise import LayerStep, Layerwise
from clefquant.quantize.reader import read_layers
from clefquant.quantize.statistics import InputCollector, InputStatistics, check_finite
from clefquant.quantize.unit import QuantizedLinear, quantize_unit
from clefquant.quantize.watching import by_linear, submodule, watching
from clefquant.recipes.formats import BF16, find_format
from clefquant.recipes.layout import Layout
from clefquant.release.load import default_device
from clefquant.release.release import Release
from clefquant.release.units import Linear, Unit


class QuantizedUnit(NamedTuple):
    """One finished unit: its linears by full name (none for bf16), and what its inputs looked like (none without a
    set).
    """

    unit: Unit
    linears: dict[str, QuantizedLinear]
    statistics: dict[str, InputStatistics]


class Algorithm(Protocol):
    """Quantizes ``release`` by ``layout`` over ``encoded``, the release's ``EncodedRecord``s."""

    def __call__(
        self,
        release: Release,
        layout: Layout,
        encoded: Sequence[Any],
        progress: Progress = SILENT,
        journal: Journal = NO_JOURNAL,
    ) -> Iterator[QuantizedUnit]:
        """Yield every unit once it is finished, in layer order, from where ``journal`` left off."""


def rtn(
    release: Release,
    layout: Layout,
    encoded: Sequence[Any],
    progress: Progress = SILENT,
    journal: Journal = NO_JOURNAL,
) -> Iterator[QuantizedUnit]:
    """Round to nearest. Without records only formats with dynamic inputs can be made."""
    if not encoded:
        yield from to_nearest(release, layout, {}, journal)
        return
    for step in Layerwise(release, encoded).steps(progress, journal):
        units, groups = _of_layer(release, step)
        with watching(step, groups, InputCollector) as collectors:
            step.run()
        statistics = by_linear(groups, (collector.result() for collector in collectors))
        check_finite(statistics)
        for unit in units:
            yield _quantized(unit, layout, step.source, statistics)


def to_nearest(
    release: Release, layout: Layout, statistics: Mapping[str, InputStatistics], journal: Journal = NO_JOURNAL
) -> Iterator[QuantizedUnit]:
    """Round to nearest with the input statistics of an earlier pass; no record is run."""
    numbers = sorted({unit.layer for unit in release.units})
    device = default_device()
    with closing(read_layers(release, [n for n in numbers if n >= journal.layer], device)) as sources:
        for number, source in sources:
            for unit in release.units:
                if unit.layer == number:
                    yield _quantized(unit, layout, source, statistics)
            journal.finish(number, tuple)


def gptq(
    release: Release,
    layout: Layout,
    encoded: Sequence[Any],
    progress: Progress = SILENT,
    journal: Journal = NO_JOURNAL,
) -> Iterator[QuantizedUnit]:
    """GPTQ, layer by layer; layers later than a quantized one are calibrated on its real output."""
    if not encoded:
        raise InputError("gptq needs --calibration SET; build one with `clefquant calibrate`.")
    for step in Layerwise(release, encoded).steps(progress, journal):
        units, groups = _of_layer(release, step)
        with watching(step, groups, _Both) as collectors:
            step.run()
        statistics = by_linear(groups, (collector.inputs.result() for collector in collectors))
        hessians = by_linear(groups, (collector.hessian.result() for collector in collectors))
        check_finite(statistics)
        changed = False
        for unit in units:
            result = _quantized(unit, layout, step.source, statistics, hessians)
            _install(step, unit, result.linears)
            changed = changed or layout.units[unit.name] != BF16.name
            yield result
        if changed:
            step.run()


def _of_layer(release: Release, step: LayerStep) -> tuple[list[Unit], list[tuple[Linear, ...]]]:
    """Units of the layer, and their fused groups."""
    units = [unit for unit in release.units if unit.layer == step.number]
    return units, [group for unit in units for group in unit.groups]


def _quantized(
    unit: Unit,
    layout: Layout,
    source: Mapping[str, torch.Tensor],
    statistics: Mapping[str, InputStatistics],
    hessians: Mapping[str, torch.Tensor] | None = None,
) -> QuantizedUnit:
    """``unit`` in its format of ``layout``, from the tensors of its layer (by full name)."""
    seen = {linear.name: statistics[linear.name] for linear in unit.linears if linear.name in statistics}
    if layout.units[unit.name] == BF16.name:
        return QuantizedUnit(unit, {}, seen)
    weights = {linear.name: source[f"{linear.name}.weight"] for linear in unit.linears}
    amax = {name: value.amax for name, value in seen.items()}
    return QuantizedUnit(unit, quantize_unit(unit, weights, find_format(layout.units[unit.name]), amax, hessians), seen)


#: Name on the command line to algorithm.
ALGORITHMS: dict[str, Algorithm] = {"rtn": rtn, "gptq": gptq}


def find_algorithm(name: str) -> Algorithm:
    """The algorithm called ``name``; InputError lists what is allowed."""
    if name not in ALGORITHMS:
        raise InputError(f"unknown algorithm {name!r}; allowed: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


class _Both:
    """Statistics and Hessian of one input."""

    def __init__(self) -> None:
        self.inputs, self.hessian = InputCollector(), HessianCollector()

    def add(self, x: torch.Tensor) -> None:
        self.inputs.add(x)
        self.hessian.add(x)


def _install(step: LayerStep, unit: Unit, linears: Mapping[str, QuantizedLinear]) -> None:
    """Let the layer compute with the quantized weights from now on."""
    for linear in unit.linears:
        if linear.name in linears:
            module = submodule(step, linear)
            source = module.weight
            assert isinstance(source, torch.Tensor)
            weight = linears[linear.name].weight.to(source.device, source.dtype)
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
