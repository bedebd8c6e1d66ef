"""The emulated formats against compressed-tensors' own functions, one layer at a time, on the same inputs."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from quantized import compress, preset_scheme

from clef_vllm.cpu_kernels import (
    EmulatedFp8Kernel,
    EmulatedMxFp4Kernel,
    EmulatedNvFp4Kernel,
    mxfp4_activation,
    mxfp4_weight,
    round_e2m1,
    unpack_e2m1,
)

pytestmark = pytest.mark.every_version
OUT, IN = 48, 128


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(OUT, IN).bfloat16() * 0.1, torch.randn(20, IN).bfloat16() * 3


def expected(weight: torch.Tensor, x: torch.Tensor, preset: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Reference output in float32, and the stored tensors."""
    from compressed_tensors.compressors import BaseCompressor
    from quantized import FORMATS

    scheme = preset_scheme(preset)
    state = compress("m.mlp.down_proj", {"m.mlp.down_proj.weight": weight}, preset)
    shared = state.get("input_global_scale")
    args = scheme.input_activations
    batch = x.float()[None]  # per-token scales are taken over the last of three axes
    scale, zero = compute_dynamic_scales_and_zp(batch, args, None, global_scale=shared)
    quantized = fake_quantize(batch, scale, zero, args, global_scale=shared)[0]
    dequantized = BaseCompressor.get_value_from_registry(FORMATS[preset]).decompress(state, scheme)["weight"]
    return quantized @ dequantized.float().t(), state


def make_layer(state: dict[str, torch.Tensor]) -> Any:
    return SimpleNamespace(weight=torch.nn.Parameter(state["weight_packed"], requires_grad=False),
                           weight_scale=torch.nn.Parameter(state["weight_scale"], requires_grad=False))  # fmt: skip


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal up to the rounding of bf16 weights and outputs."""
    error = (found.float() - wanted).norm() / wanted.norm()
    assert error < 0.004, f"relative error {float(error):.4f}"


def test_nvfp4(case: Any) -> None:
    weight, x = case
    wanted, state = expected(weight, x, "NVFP4")
    layer = make_layer(state)
    layer.weight_global_scale = torch.nn.Parameter(1 / state["weight_global_scale"].squeeze(), requires_grad=False)
    layer.input_global_scale_inv = torch.nn.Parameter(state["input_global_scale"].squeeze(), requires_grad=False)
    kernel = EmulatedNvFp4Kernel.__new__(EmulatedNvFp4Kernel)
    kernel.process_weights_after_loading(layer)
    close(kernel.apply_weights(layer, x), wanted)
    del layer.input_global_scale_inv  # weight-only: the input stays as it is
    close(kernel.apply_weights(layer, x), x.float() @ layer.weight.float().t())


def test_mxfp4(case: Any) -> None:
    weight, x = case
    wanted, state = expected(weight, x, "MXFP4")
    layer = make_layer(state)
    kernel = EmulatedMxFp4Kernel.__new__(EmulatedMxFp4Kernel)
    kernel.config = SimpleNamespace(activation_quant_key="dynamic")
    kernel.process_weights_after_loading(layer)
    close(kernel.apply_weights(layer, x), wanted)
    kernel.config.activation_quant_key = None
    close(kernel.apply_weights(layer, x), x.float() @ layer.weight.float().t())


def test_fp8(case: Any) -> None:
    weight, x = case
    wanted, state = expected(weight, x, "FP8_DYNAMIC")
    scale = x.float().abs().amax(-1, keepdim=True) / 448
    codes = (x.float() / scale).to(torch.float8_e4m3fn)
    layer = SimpleNamespace(weight=torch.nn.Parameter(state["weight"].t().float(), requires_grad=False))
    kernel = EmulatedFp8Kernel.__new__(EmulatedFp8Kernel)
    out = kernel.apply_scaled_mm(
        A=codes, B=layer.weight, out_dtype=torch.bfloat16, As=scale, Bs=state["weight_scale"].float(), bias=None,
        output_shape=[20, OUT],
    )  # fmt: skip
    close(out, wanted)


def test_e2m1_codes_and_ties() -> None:
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xFE]], dtype=torch.uint8)
    assert unpack_e2m1(packed).tolist() == [[0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -4, -6]]
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -2.5, -5.0, 9.0, -9.0])
    assert round_e2m1(ties).tolist() == [0, 1, 1, 2, 2, 4, 4, -2, -4, 6, -6]


def test_mxfp4_scale_bytes() -> None:
    """Byte 127 is 1, 134 is 128, 0 is 2**-127; a block of zeros stays zero."""
    packed = torch.full((1, 16), 0x22, dtype=torch.uint8)
    for byte, value in ((127, 1.0), (134, 128.0), (0, 2.0**-127)):
        assert mxfp4_weight(packed, torch.tensor([[byte]], dtype=torch.uint8)).unique().tolist() == [value]
    assert mxfp4_activation(torch.zeros(1, 32)).abs().max() == 0
