"""Rounding the input of a linear to a quantized format and back, in fewer passes than compressed-tensors.

Bit for bit ``compute_dynamic_scales_and_zp`` followed by ``fake_quantize``, for the formats whose scale is found anew
in every call. With a the largest absolute value of a group of x, in the dtype of x unless said otherwise:

    plain    s = a / span
    nvfp4    s = e4m3(global_scale * (a / span)) / global_scale, in float32
    mx       s = 2 ^ (exponent of a, rounded to two bits of mantissa, less that of the largest element)
    then     y = s * round(clamp(x / s))

A scale of 0 is replaced by compressed-tensors' epsilon. On a GPU one Triton kernel reads and writes each number once;
elsewhere torch works through blocks that fit the cache.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_BLOCK = 1 << 16  # numbers: with its temporaries it stays in a core's second-level cache
_EXPONENT = 0x7F800000  # bits of a float32
_E4M3_LARGEST, _E4M3_MANTISSA, _E4M3_NORMAL = 448.0, 3, 2.0**-6
_E4M3_EPSILON = 0.125  # compressed-tensors' stand-in for a scale of 0


@dataclass(frozen=True)
class Rounding:
    """How an input is rounded.

    ``group``: numbers of the last axis that share a scale, 0 = all. ``lowest`` and ``largest``: of an element.
    ``span``: what the largest absolute value is divided by. ``mantissa``: bits of an element behind the leading one,
    ``smallest``: its smallest normal number; both 0 for integers. ``mx_offset``: exponent of the largest element where
    scales are powers of two, else None. ``two_level``: e4m3 scales under a global scale.
    """

    group: int
    lowest: float
    largest: float
    span: float
    mantissa: int
    smallest: float
    mx_offset: int | None = None
    two_level: bool = False


_INT8 = (-128.0, 127.0, 127.5, 0, 0.0)
_E4M3 = (-_E4M3_LARGEST, _E4M3_LARGEST, _E4M3_LARGEST, _E4M3_MANTISSA, _E4M3_NORMAL)
_E2M1 = (-6.0, 6.0, 6.0, 1, 1.0)


def rounding_of(args: Any, x: torch.Tensor, global_scale: torch.Tensor | None) -> Rounding | None:
    """How compressed-tensors' ``QuantizationArgs`` round ``x``, or None when that is not covered here."""
    from compressed_tensors.quantization import QuantizationType

    # the fields hold members or their values
    strategy, kind = args.strategy, (QuantizationType(args.type).value, args.num_bits)
    if not args.symmetric or args.dynamic not in (True, "local") or x.dtype not in (torch.bfloat16, torch.float32):
        return None
    elements = {("int", 8): _INT8, ("float", 8): _E4M3, ("float", 4): _E2M1}.get(kind)
    if elements is None:
        return None
    # compressed-tensors takes one scale per token in three dimensions alone
    if strategy == "token" and args.scale_dtype is None and global_scale is None and x.ndim == 3 and args.num_bits == 8:
        return Rounding(0, *elements)
    group = args.group_size
    if not group or x.ndim < 2 or x.shape[-1] % group or group & (group - 1):
        return None
    if strategy == "group" and kind[0] == "float" and global_scale is None:
        if args.scale_dtype == torch.uint8 and group == 32:
            return Rounding(group, *elements, mx_offset={4: 2, 8: 8}[args.num_bits])
        if args.scale_dtype is None:
            return Rounding(group, *elements)
    if strategy == "tensor_group" and kind == ("float", 4) and args.scale_dtype == torch.float8_e4m3fn:
        single = global_scale is not None and global_scale.numel() == 1 and global_scale.dtype == torch.float32
        return Rounding(group, *elements, two_level=True) if single else None
    return None


@torch.no_grad()
def round_input(x: torch.Tensor, rounding: Rounding, global_scale: torch.Tensor | None) -> torch.Tensor:
    """``x`` [..., I] (bfloat16 or float32) rounded and back: same shape and dtype, contiguous.

    ``global_scale``: one float32, for ``two_level`` alone.
    """
    rows = x.reshape(-1, rounding.group or x.shape[-1]).contiguous()
    if rows.is_cuda and (launch := _triton_launcher()):
        result: torch.Tensor = launch(rows, rounding, global_scale)
    else:
        result = torch.empty_like(rows)
        step = max(1, _BLOCK // rows.shape[1])
        for source, target in zip(torch.split(rows, step), torch.split(result, step), strict=True):
            _round_rows(source, target, rounding, global_scale)
    return result.view(x.shape)


@cache
def _triton_launcher() -> Any:
    try:
        from clefquant.quantize.kernels_triton import launch
    except ImportError:  # torch without Triton
        return None
    return launch


def _round_rows(x: torch.Tensor, out: torch.Tensor, rounding: Rounding, global_scale: torch.Tensor | None) -> None:
    """Round every row of ``x`` [R, group] under one scale into ``out``."""
    scale = _scales(torch.maximum(x.amax(-1), -x.amin(-1)).abs_(), rounding, global_scale).unsqueeze(-1)
    scaled = torch.div(x, scale).float()
    scaled.add_(0.0).clamp_(rounding.lowest, rounding.largest)  # a zero loses its sign, as under a zero point
    rounded = _to_elements(scaled, rounding) if rounding.mantissa else scaled.round_()
    torch.mul(rounded.to(scale.dtype), scale, out=out)


def _scales(amax: torch.Tensor, rounding: Rounding, global_scale: torch.Tensor | None) -> torch.Tensor:
    """The divisor of each row from its largest absolute value [R]."""
    if rounding.mx_offset is not None:
        # torch's vectorized maximum gives a NaN of all ones, whose rounded exponent is 0
        bits = amax.float().view(torch.int32).masked_fill(amax.isnan(), 0x7FFFFFFF)
        exponent = (bits + (1 << 21)) >> 23 & 0xFF
        shared = torch.where(exponent == 255, 255, (exponent - rounding.mx_offset).clamp_(min=0))
        # 2^-127 is no normal number: its exponent bits are 0
        return torch.where(shared == 0, 1 << 22, shared << 23).view(torch.float32).to(amax.dtype)
    scale = amax / rounding.span
    if not rounding.two_level:
        return scale.masked_fill_(scale == 0, torch.finfo(scale.dtype).eps)
    assert global_scale is not None
    scale = (global_scale * scale).clamp_(-_E4M3_LARGEST, _E4M3_LARGEST)
    scale = scale.to(torch.float8_e4m3fn).float()
    return scale.masked_fill_(scale == 0, _E4M3_EPSILON).div_(global_scale)


def _to_elements(v: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """float32 rounded to the nearest element, ties to even.

    Adding 1.5 * 2^23 steps leaves no bits below a step; subtracting it again is exact.
    """
    power = (v.view(torch.int32) & _EXPONENT).view(torch.float32).clamp_(min=rounding.smallest)
    shift = power.mul_(1.5 * 2.0 ** (23 - rounding.mantissa))
    return v.add(shift).sub_(shift).copysign_(v)
