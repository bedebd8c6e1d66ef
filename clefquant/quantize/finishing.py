"""From a layer's source tensors to its finished units, for every algorithm."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from clefquant.quantize.layerwise import LayerStep
from clefquant.quantize.ranks import ranks
from clefquant.quantize.scales import Scales
from clefquant.quantize.statistics import InputStatistics
from clefquant.quantize.unit import QuantizedLinear, quantize_unit
from clefquant.quantize.watching import submodule
from clefquant.recipes.formats import BF16, find_format
from clefquant.recipes.layout import Layout
from clefquant.release.release import Release
from clefquant.release.units import Unit


class QuantizedUnit(NamedTuple):
    """One finished unit: its linears by full name (none for bf16), what its inputs looked like (none without a set),
    and other tensors that the algorithm changed, by full name, in the dtype and shape of the source.
    """

    unit: Unit
    linears: dict[str, QuantizedLinear]
    statistics: dict[str, InputStatistics]
    changed: Mapping[str, torch.Tensor] = {}


def units_of_layer(release: Release, number: int) -> list[Unit]:
    """Units of the layer."""
    return [unit for unit in release.units if unit.layer == number]


def finish(
    unit: Unit,
    layout: Layout,
    source: Mapping[str, torch.Tensor],
    statistics: Mapping[str, InputStatistics],
    scales: Scales,
    hessians: Mapping[str, torch.Tensor] | None = None,
) -> QuantizedUnit:
    """``unit`` in its format of ``layout``, from the tensors of its layer (by full name)."""
    seen = {linear.name: statistics[linear.name] for linear in unit.linears if linear.name in statistics}
    if layout.units[unit.name] == BF16.name:
        return QuantizedUnit(unit, {}, seen)
    weights = {linear.name: source[f"{linear.name}.weight"] for linear in unit.linears}
    amax = {name: value.amax for name, value in seen.items()}
    linears = quantize_unit(unit, weights, find_format(layout.units[unit.name]), amax, hessians, scales)
    return QuantizedUnit(unit, linears, seen)


def only_seen(unit: Unit, statistics: Mapping[str, InputStatistics]) -> QuantizedUnit:
    """A unit that another process quantizes: its statistics alone."""
    return QuantizedUnit(unit, {}, {linear.name: statistics[linear.name] for linear in unit.linears})


def owned_units(release: Release) -> frozenset[str]:
    """Names of the units that this process writes."""
    return frozenset(unit.name for number, unit in enumerate(release.units) if ranks().owns(number))


def install(step: LayerStep, unit: Unit, linears: Mapping[str, QuantizedLinear]) -> None:
    """Let the layer compute with the quantized weights from now on."""
    for linear in unit.linears:
        if linear.name in linears:
            module = submodule(step, linear)
            source = module.weight
            assert isinstance(source, torch.Tensor)
            weight = linears[linear.name].weight.to(source.device, source.dtype)
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
