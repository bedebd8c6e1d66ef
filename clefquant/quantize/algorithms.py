"""How weights are rounded: a visible list of algorithms, each a generator of quantized units in layer order.

``rtn`` rounds to nearest after one calibration pass. ``gptq`` corrects each column's rounding error in the columns
after it, by the Hessian of the inputs, and lets every layer see what the quantized layers before it really give.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.hessian import HessianCollector
from clefquant.quantize.layerwise import LayerStep, Layerwise
from clefquant.quantize.model import quantize_from_disk
from clefquant.quantize.statistics import InputCollector, InputStatistics, check_finite, collect_statistics
from clefquant.quantize.unit import QuantizedLinear
from clefquant.quantize.watching import submodule, watching
from clefquant.recipes.formats import BF16
from clefquant.recipes.layout import Layout
from clefquant.release.release import Release
from clefquant.release.units import Unit


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
        self, release: Release, layout: Layout, encoded: Sequence[Any], progress: Progress = SILENT
    ) -> Iterator[QuantizedUnit]:
        """Yield every unit once it is finished, in layer order."""


def rtn(
    release: Release, layout: Layout, encoded: Sequence[Any], progress: Progress = SILENT
) -> Iterator[QuantizedUnit]:
    """Round to nearest. Without records only formats with dynamic inputs can be made."""
    statistics = collect_statistics(release, encoded, progress=progress) if encoded else {}
    yield from to_nearest(release, layout, statistics)


def to_nearest(release: Release, layout: Layout, statistics: Mapping[str, InputStatistics]) -> Iterator[QuantizedUnit]:
    """Round to nearest with the input statistics of an earlier pass."""
    amax = {name: value.amax for name, value in statistics.items()}
    for unit in release.units:
        seen = {linear.name: statistics[linear.name] for linear in unit.linears if linear.name in statistics}
        yield QuantizedUnit(unit, quantize_from_disk(release, unit, layout.units[unit.name], amax), seen)


def gptq(
    release: Release, layout: Layout, encoded: Sequence[Any], progress: Progress = SILENT
) -> Iterator[QuantizedUnit]:
    """GPTQ, layer by layer; layers later than a quantized one are calibrated on its real output."""
    if not encoded:
        raise InputError("gptq needs --calibration SET; build one with `clefquant calibrate`.")
    for step in Layerwise(release, encoded).steps(progress):
        units = [unit for unit in release.units if unit.layer == step.number]
        groups = [group for unit in units for group in unit.groups]
        with watching(step, groups, _Both) as collectors:
            step.run()
        statistics: dict[str, InputStatistics] = {}
        hessians: dict[str, torch.Tensor] = {}
        for group, collector in zip(groups, collectors, strict=True):
            statistics.update(dict.fromkeys((linear.name for linear in group), collector.inputs.result()))
            hessians.update(dict.fromkeys((linear.name for linear in group), collector.hessian.result()))
        check_finite(statistics)
        amax = {name: value.amax for name, value in statistics.items()}
        changed = False
        for unit in units:
            linears = quantize_from_disk(release, unit, layout.units[unit.name], amax, hessians)
            _install(step, unit, linears)
            changed = changed or layout.units[unit.name] != BF16.name
            yield QuantizedUnit(unit, linears, {linear.name: statistics[linear.name] for linear in unit.linears})
        if changed:
            step.run()


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
