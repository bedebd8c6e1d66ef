"""Matrix products as torch can run them: one per format, the input's rounding included."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from clefquant.quantize.unit import QuantizedLinear, dequantize
from clefquant.recipes.formats import Format

_FP8_CAPABILITY = (8, 9)
_E4M3_LARGEST, _INT8_LARGEST = 448.0, 127.0


class Product(NamedTuple):
    """``kernel``: what runs, in words. ``run``: X [T, I] bfloat16 to Y [T, O] bfloat16."""

    kernel: str
    run: Callable[[torch.Tensor], torch.Tensor]


def product(fmt: Format, weight: torch.Tensor, quantized: QuantizedLinear | None) -> Product:
    """The product with ``weight`` [O, I] bfloat16, or with its ``quantized`` form, on the device where they are."""
    if quantized is None:
        return Product("bf16 matmul", lambda x: x @ weight.T)
    tensors, scheme = quantized.tensors, quantized.scheme
    if fmt.input == "per token" and fmt.element == "e4m3" and _has_fp8(weight.device):
        return Product("fp8 scaled_mm", _fp8(tensors["weight"], tensors["weight_scale"]))
    if fmt.input == "per token" and fmt.element == "int8":
        return Product("int8 _int_mm", _int8(tensors["weight"], tensors["weight_scale"]))
    return Product("dequantize, then bf16 matmul", lambda x: x @ dequantize(tensors, scheme).to(x.dtype).T)


def _has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY


def _fp8(weight: torch.Tensor, scale: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Scales of both sides are float32, one per row of X [T, 1] and per row of W [1, O]."""
    turned, per_output = weight.T, scale.float().T.contiguous()

    def run(x: torch.Tensor) -> torch.Tensor:
        per_token = _per_token(x, _E4M3_LARGEST)
        rounded = (x / per_token).to(torch.float8_e4m3fn)
        return torch._scaled_mm(
            rounded, turned, scale_a=per_token, scale_b=per_output, out_dtype=x.dtype, use_fast_accum=True
        )

    return run


def _int8(weight: torch.Tensor, scale: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The product is int32 and scaled afterwards."""
    turned, per_output = weight.T, scale.float().T.contiguous()

    def run(x: torch.Tensor) -> torch.Tensor:
        per_token = _per_token(x, _INT8_LARGEST)
        rounded = (x / per_token).round().to(torch.int8)
        return (torch._int_mm(rounded, turned) * per_token * per_output).to(x.dtype)

    return run


def _per_token(x: torch.Tensor, largest: float) -> torch.Tensor:
    """float32 [T, 1]."""
    return x.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12) / largest
