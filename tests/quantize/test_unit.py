"""One unit: shared scales, stored shapes, exact values."""

import pytest
import torch

from clefquant.quantize.dtypes import NAMES
from clefquant.quantize.unit import dequantize, quantize_unit
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import FORMATS, find_format
from clefquant.release.units import Linear, Unit

PREFIX = "model.language_model.layers.0.linear_attn"
GDN = Unit(
    "layers.0.linear_attn", 0, "gdn",
    (
        (Linear(f"{PREFIX}.in_proj_qkv", 64, 128), Linear(f"{PREFIX}.in_proj_z", 32, 128)),
        (Linear(f"{PREFIX}.out_proj", 160, 256),),
    ),
)  # fmt: skip


def _weights(amax):
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for linear, peak in zip(GDN.linears, amax, strict=True):
        weight = torch.rand(linear.out_features, linear.in_features, generator=generator) - 0.5
        weights[linear.name] = (weight / weight.abs().max() * peak).bfloat16()
    return weights


def test_siblings_share_the_global_scale_of_the_larger():
    weights = _weights((1.0, 1.5, 0.25))
    result = quantize_unit(GDN, weights, find_format("nvfp4"), dict.fromkeys(weights, 2.0))
    scales = {name.rsplit(".", 1)[1]: q.tensors["weight_global_scale"].item() for name, q in result.items()}
    assert scales == {"in_proj_qkv": 1792.0, "in_proj_z": 1792.0, "out_proj": 10752.0}  # 2688 / amax
    assert all(q.tensors["input_global_scale"].item() == 1344.0 for q in result.values())


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_stored_as_the_table_says_and_close_to_the_source(fmt):
    weights = _weights((1.0, 1.5, 0.25))
    result = quantize_unit(GDN, weights, fmt, dict.fromkeys(weights, 2.0))
    for linear in GDN.linears:
        quantized = result[linear.name]
        assert {k: (NAMES[t.dtype], tuple(t.shape)) for k, t in quantized.tensors.items()} == fmt.stored(linear)
        error = (quantized.weight.float() - weights[linear.name].float()).norm() / weights[linear.name].float().norm()
        assert error < {"e4m3": 0.04, "int8": 0.01, "e2m1": 0.16, "int4": 0.16}[fmt.element]


def test_zero_weights_and_inputs_make_no_infinite_scale():
    weights = {
        linear.name: torch.zeros(linear.out_features, linear.in_features, dtype=torch.bfloat16)
        for linear in GDN.linears
    }
    for fmt in FORMATS:
        for quantized in quantize_unit(GDN, weights, fmt, dict.fromkeys(weights, 0.0)).values():
            for name, tensor in quantized.tensors.items():
                assert torch.isfinite(tensor.float()).all(), (fmt.name, name)
            assert not quantized.weight.any()
            assert all(quantized.tensors[key] > 0 for key in quantized.tensors if key.endswith("global_scale"))


def test_mxfp4_scale_bytes():
    scheme = scheme_of(find_format("mxfp4"), ["Linear"])
    packed = torch.full((1, 16), 0x22, dtype=torch.uint8)  # every element is E2M1 code 2: 1.0
    for byte, value in ((127, 1.0), (134, 128.0)):
        weight = dequantize(
            {"weight_packed": packed, "weight_scale": torch.tensor([[byte]], dtype=torch.uint8)}, scheme
        )
        assert torch.all(weight == value)
