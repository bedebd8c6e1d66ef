"""FP8, NVFP4 and MXFP4 linear layers for the CPU back end, so that a machine without a GPU can prove every format.

vLLM 0.28-0.32 has no CPU kernel for NVFP4 and MXFP4, and its FP8 one (`torch._scaled_mm`) takes seconds a layer.
Weights are dequantized once at load; activations go through the format on every call; the product is a plain GEMM.

    E2M1 (4 bit)   0 0.5 1 1.5 2 3 4 6 and their negatives; two per byte, the even element in the low nibble
    NVFP4          16 values share an E4M3 scale; one float32 global scale per layer (a divisor in the file)
    MXFP4          32 values share an E8M0 scale, byte b meaning 2**(b - 127); for amax = m * 2**e with 1 <= m < 2 the
                   exponent is e - 2, or e - 1 where m >= 1.75 ("even" rounding, as compressed-tensors and Quark do)
    FP8            E4M3 with a float32 scale per output channel and per token
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parameter import Parameter
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear.mxfp4.base import MxFp4LinearKernel
from vllm.model_executor.kernels.linear.nvfp4.emulation import EmulationNvFp4LinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.pytorch import ChannelWiseTorchFP8ScaledMMLinearKernel
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import ref_nvfp4_quant
from vllm.platforms import PlatformEnum

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Halfway points; ties go to the even mantissa (0, 1, 2, 4), so every second bound belongs to the upper value.
_BOUNDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def unpack_e2m1(packed: Tensor) -> Tensor:
    """uint8 [O, I / 2] to float32 [O, I]."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).long()
    return E2M1[codes & 7] * torch.where(codes > 7, -1.0, 1.0)


def round_e2m1(values: Tensor) -> Tensor:
    """Nearest E2M1 value, ties to even, saturating at 6; float32 in and out."""
    magnitude = values.abs()
    below = torch.bucketize(magnitude, _BOUNDS)  # a value on a bound takes the lower neighbour
    above = torch.bucketize(magnitude, _BOUNDS, right=True)  # ... the upper neighbour
    return E2M1[torch.where(below % 2 == 0, below, above)].copysign(values)


def mxfp4_weight(packed: Tensor, scale: Tensor) -> Tensor:
    """uint8 [O, I / 2] and E8M0 bytes [O, I / 32] to float32 [O, I]."""
    values = unpack_e2m1(packed).unflatten(1, (-1, 32))
    return (values * torch.exp2(scale.float() - 127).unsqueeze(-1)).flatten(1)


def mxfp4_activation(x: Tensor) -> Tensor:
    """Quantize and dequantize along the last axis in blocks of 32; keeps the dtype."""
    blocks = x.float().unflatten(-1, (-1, 32))
    half_mantissa, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True))  # mantissa in [0.5, 1)
    scale = torch.exp2((exponent - 3 + (half_mantissa >= 0.875)).clamp(min=-127).float())
    return (round_e2m1(blocks / scale) * scale).flatten(-2).to(x.dtype)


class EmulatedMxFp4Kernel(MxFp4LinearKernel):
    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        weight = mxfp4_weight(layer.weight.data, layer.weight_scale.data)
        layer.weight = Parameter(weight.to(torch.bfloat16), requires_grad=False)

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        # 0.28-0.31 have no activation_quant_key: activations are quantized. Later: None says weight-only.
        if getattr(self.config, "activation_quant_key", True) is not None:
            x = mxfp4_activation(x)
        return F.linear(x, layer.weight.to(x.dtype), bias)


class EmulatedNvFp4Kernel(EmulationNvFp4LinearKernel):
    def process_weights_after_loading(self, layer: Any) -> None:
        blocks = unpack_e2m1(layer.weight.data).unflatten(1, (-1, 16))
        scale = layer.weight_scale.data.float() * layer.weight_global_scale.data.float()
        weight = (blocks * scale.unsqueeze(-1)).flatten(1)
        layer.weight = Parameter(weight.to(torch.bfloat16), requires_grad=False)

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if hasattr(layer, "input_global_scale_inv"):  # absent where only weights are quantized
            flat = x.reshape(-1, x.shape[-1])
            codes, scale = ref_nvfp4_quant(flat, layer.input_global_scale_inv, 16)
            blocks = codes.unflatten(-1, (-1, 16)) * (scale / layer.input_global_scale_inv).unsqueeze(-1)
            x = blocks.flatten(-2).to(x.dtype).view(x.shape)
        return F.linear(x, layer.weight.to(x.dtype), bias)


class EmulatedFp8Kernel(ChannelWiseTorchFP8ScaledMMLinearKernel):
    """The scheme hands over E4M3 operands; their product is taken in float32 instead of a scalar loop."""

    def process_weights_after_loading(self, layer: Any) -> None:
        # E4M3 values are exact in float32, so casting once at load changes nothing but the time.
        layer.weight = Parameter(layer.weight.data.float(), requires_grad=False)

    def apply_scaled_mm(
        self, *, A: Tensor, B: Tensor, out_dtype: torch.dtype, As: Tensor, Bs: Tensor, bias: Tensor | None,
        output_shape: list[int],
    ) -> Tensor:  # fmt: skip
        rows = 1
        for size in output_shape[:-1]:
            rows *= size
        # Rows beyond `rows` are padding that the activation quantizer may add.
        product = (A[:rows].float() @ B) * As[:rows].reshape(rows, -1) * Bs.reshape(1, -1)
        if bias is not None:
            product = product + bias
        return product.to(out_dtype).view(*output_shape)


def register_cpu_kernels() -> bool:
    """Put the three kernels in front of vLLM's own for the CPU; False if that was already done."""
    formats: tuple[tuple[dict[Any, list[type]], type], ...] = (
        (linear._POSSIBLE_MXFP4_KERNELS, EmulatedMxFp4Kernel),
        (linear._POSSIBLE_NVFP4_KERNELS, EmulatedNvFp4Kernel),
        # vLLM's register_linear_kernel appends, and its own FP8 kernel would be found first: hence the insertion.
        (linear._POSSIBLE_FP8_KERNELS, EmulatedFp8Kernel),
    )
    new = False
    for registry, kernel in formats:
        kernels = registry.setdefault(PlatformEnum.CPU, [])
        if kernel not in kernels:
            kernels.insert(0, kernel)
            new = True
    return new
