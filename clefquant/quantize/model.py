"""Quantized units of a release, made one after another from the source weights on disk."""

from collections.abc import Iterable, Mapping

import torch

from clefquant.errors import InputError
from clefquant.quantize.dtypes import DTYPES
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.unit import QuantizedLinear, quantize_unit
from clefquant.recipes.formats import BF16, find_format
from clefquant.release.headers import TensorInfo
from clefquant.release.release import Release
from clefquant.release.units import Unit


def read_tensor(info: TensorInfo, *, pinned: bool = False) -> torch.Tensor:
    """One tensor, as stored; ``pinned`` for a fast copy to a GPU. InputError for a dtype no supported format uses."""
    if info.dtype not in DTYPES:
        raise InputError(f"{info.file} stores a tensor as {info.dtype}; supported: {', '.join(DTYPES)}.")
    found = torch.empty(info.shape, dtype=DTYPES[info.dtype], pin_memory=pinned)
    if info.bytes:
        info.read_into(found.view(-1).view(torch.uint8).numpy().data)
    return found


def quantize_from_disk(
    release: Release,
    unit: Unit,
    format_name: str,
    input_amax: Mapping[str, float],
    hessians: Mapping[str, torch.Tensor] | None = None,
    scales: Scales = DEFAULT_SCALES,
) -> dict[str, QuantizedLinear]:
    """Quantize one unit from its source weights; an empty result for ``bf16``. Arguments as in
    :func:`quantize_unit`.
    """
    if format_name == BF16.name:
        return {}
    weights = {linear.name: read_tensor(release.tensors[f"{linear.name}.weight"]) for linear in unit.linears}
    return quantize_unit(unit, weights, find_format(format_name), input_amax, hessians, scales)


def quantize_layout(
    release: Release, units: Mapping[str, str], input_amax: Mapping[str, float]
) -> dict[str, QuantizedLinear]:
    """Every quantized linear of a layout (unit name to format), by full module name, in memory."""
    chosen: Iterable[Unit] = (unit for unit in release.units if units[unit.name] != BF16.name)
    return {
        name: quantized
        for unit in chosen
        for name, quantized in quantize_from_disk(release, unit, units[unit.name], input_amax).items()
    }
