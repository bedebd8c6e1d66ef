"""Quantized units of a release, made one after another from the source weights on disk."""

from collections.abc import Iterable, Mapping

import torch

from clefquant.errors import InputError
from clefquant.quantize.dtypes import DTYPES
from clefquant.quantize.unit import QuantizedLinear, quantize_unit
from clefquant.recipes.formats import BF16, find_format
from clefquant.release.headers import TensorInfo
from clefquant.release.release import Release
from clefquant.release.units import Unit


def read_tensor(info: TensorInfo) -> torch.Tensor:
    """One tensor, as stored. InputError for a dtype no supported format uses."""
    if info.dtype not in DTYPES:
        raise InputError(f"{info.file} stores a tensor as {info.dtype}; supported: {', '.join(DTYPES)}.")
    dtype = DTYPES[info.dtype]
    if info.bytes == 0:
        return torch.empty(info.shape, dtype=dtype)
    return torch.frombuffer(bytearray(info.read()), dtype=dtype).reshape(info.shape)


def quantize_from_disk(
    release: Release,
    unit: Unit,
    format_name: str,
    input_amax: Mapping[str, float],
    hessians: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, QuantizedLinear]:
    """Quantize one unit from its source weights; an empty result for ``bf16``. Arguments as in
    :func:`quantize_unit`.
    """
    if format_name == BF16.name:
        return {}
    weights = {linear.name: read_tensor(release.tensors[f"{linear.name}.weight"]) for linear in unit.linears}
    return quantize_unit(unit, weights, find_format(format_name), input_amax, hessians)


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
