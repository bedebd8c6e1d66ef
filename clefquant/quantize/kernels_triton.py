"""The GPU kernel of :mod:`clefquant.quantize.kernels`: read a group, find its scale, round it, write it.

bfloat16 comes and goes as 16-bit integers and is rounded by integer arithmetic, so that every GPU, and Triton's
interpreter, which cuts such numbers off, compute the same bits.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from clefquant.quantize.kernels import Rounding

_NUMBERS = 4096  # per program, where a group has fewer


@triton.jit  # type: ignore[untyped-decorator]
def _to_elements(v, smallest: tl.constexpr, shift: tl.constexpr):  # type: ignore[no-untyped-def]
    """Nearest element, ties to even; the sign of a negative number that becomes 0 is kept."""
    power = (v.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    magic = tl.where(power < smallest, smallest, power) * shift
    rounded = ((v + magic) - magic).to(tl.int32, bitcast=True)
    # minus zero by its bit: a Triton before 3.8 computes -x as 0 - x
    return tl.where(v < 0, rounded | -2147483648, rounded).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _to_dtype(v, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 ``v`` as the nearest bfloat16, ties to even, where ``HALF``."""
    if HALF:
        bits = v.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        v = tl.where(v == v, bits.to(tl.float32, bitcast=True), v)
    return v


@triton.jit  # type: ignore[untyped-decorator]
def _round_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    out_ptr,
    global_scale_ptr,
    rows,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    LOWEST: tl.constexpr,
    LARGEST: tl.constexpr,
    SPAN: tl.constexpr,
    SMALLEST: tl.constexpr,
    SHIFT: tl.constexpr,
    EPSILON: tl.constexpr,
    MX_OFFSET: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_WIDTH)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    x = tl.load(x_ptr + place, inside, 0)
    if HALF:
        x = (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    # bits of absolute values order as the values do, NaN above infinity
    bits = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    if MX_OFFSET >= 0:
        bits = tl.where(bits > 0x7F800000, 0x7FFFFFFF, bits)  # the NaN that torch's maximum gives: its exponent is 0
        exponent = ((bits + (1 << 21)) >> 23) & 0xFF
        shared = tl.where(exponent == 255, 255, tl.maximum(exponent - MX_OFFSET, 0))
        scale = tl.where(shared == 0, 1 << 22, shared << 23).to(tl.float32, bitcast=True)
    else:
        scale = _to_dtype(tl.div_rn(bits.to(tl.float32, bitcast=True), SPAN), HALF)
        if TWO_LEVEL:
            global_scale = tl.load(global_scale_ptr)
            scale = scale * global_scale
            scale = tl.where(scale > 448.0, 448.0, scale)
            scale = _to_elements(scale, 0.015625, 1572864.0)
            scale = tl.div_rn(tl.where(scale == 0, EPSILON, scale), global_scale)
        else:
            scale = tl.where(scale == 0, EPSILON, scale)
    v = tl.div_rn(x, tl.broadcast_to(scale[:, None], BLOCK_ROWS, BLOCK_WIDTH))
    if not TWO_LEVEL:
        v = _to_dtype(v, HALF)
    v = tl.where(v > LARGEST, LARGEST, v)  # a comparison lets NaN through
    v = tl.where(v < LOWEST, LOWEST, v)
    v = _to_elements(v, SMALLEST, SHIFT)
    v = _to_dtype(v * scale[:, None], HALF)
    if HALF:
        v = (v.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    tl.store(out_ptr + place, v, inside)


def launch(rows: torch.Tensor, rounding: "Rounding", global_scale: torch.Tensor | None) -> torch.Tensor:
    """Round ``rows`` [R, W] (contiguous, bfloat16 or float32), one scale a row, on their device."""
    out = torch.empty_like(rows)
    count, width = rows.shape
    block_width = triton.next_power_of_2(width)
    block_rows = max(1, _NUMBERS // block_width)
    integers = rounding.mantissa == 0
    half = rows.dtype == torch.bfloat16
    arguments: dict[str, Any] = {
        "HALF": half,
        "WIDTH": width,
        "BLOCK_ROWS": block_rows,
        "BLOCK_WIDTH": block_width,
        "LOWEST": rounding.lowest,
        "LARGEST": rounding.largest,
        "SPAN": rounding.span,
        # whole numbers: the step is 1 whatever the exponent, so the power is one that no element exceeds
        "SMALLEST": 256.0 if integers else rounding.smallest,
        "SHIFT": 1.5 * 2.0**15 if integers else 1.5 * 2.0 ** (23 - rounding.mantissa),
        "EPSILON": 0.125 if rounding.two_level else torch.finfo(rows.dtype).eps,
        "MX_OFFSET": -1 if rounding.mx_offset is None else rounding.mx_offset,
        "TWO_LEVEL": rounding.two_level,
    }
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        _round_kernel[(triton.cdiv(count, block_rows),)](
            rows.view(torch.int16) if half else rows, out.view(torch.int16) if half else out,
            rows if global_scale is None else global_scale, count,
            **arguments, num_warps=4 if block_width <= _NUMBERS else 16, enable_fp_fusion=False,
        )  # fmt: skip
    return out
