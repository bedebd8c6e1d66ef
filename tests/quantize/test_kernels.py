"""Rounded inputs: bit for bit those of compressed-tensors, in every format, for numbers of every kind."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clefquant.quantize import kernels
from clefquant.quantize.inputs import fake_quantize_input
from clefquant.quantize.kernels import round_input, rounding_of
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import FORMATS, find_format

ROUNDED = [fmt.name for fmt in FORMATS if fmt.input]
DTYPES = (torch.float32, torch.bfloat16)


def arguments(name):
    return scheme_of(find_format(name), ["Linear"]).input_activations


def global_scale(name, value=2688.0 / 3):
    return torch.tensor([value]) if find_format(name).static_input else None


def theirs(x, name, scale):
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    args = arguments(name)
    local, zero_point = compute_dynamic_scales_and_zp(x, args, None, global_scale=scale)
    return fake_quantize(x, local, zero_point, args, global_scale=scale)


def ours(x, name, scale):
    rounding = rounding_of(arguments(name), x, scale)
    assert rounding is not None
    return round_input(x, rounding, scale)


def assert_same_bits(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert torch.equal(a.isnan(), b.isnan())
    bits = torch.int32 if a.dtype == torch.float32 else torch.int16
    known = ~a.isnan()
    assert torch.equal(a[known].view(bits), b[known].view(bits))


def hard_inputs(dtype):
    """[1, L, 256]: scales of every size, ties of every format, zeros, tiny, huge and infinite numbers."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(300, 256, generator=generator)
    sizes = noise * 2.0 ** torch.linspace(-149, 127, 300).round().unsqueeze(-1)
    ties = torch.arange(256).sub(128).div(4).repeat(8, 1) * 2.0 ** torch.arange(-4, 4).unsqueeze(-1)
    e4m3_ties = torch.arange(256).add(0.5).mul(448 / 256).repeat(2, 1)
    largest = torch.finfo(dtype).max
    special = torch.zeros(8, 256)
    special[1] = -0.0
    special[2, ::16] = torch.finfo(dtype).smallest_normal / 2
    special[3, 5] = largest
    special[4] = -largest
    special[5, 7] = torch.inf
    special[6, ::2] = -torch.inf
    special[7] = torch.linspace(-1, 1, 256) * largest
    return torch.cat([noise, sizes, ties, e4m3_ties, special]).to(dtype).unsqueeze(0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_hard_numbers(name, dtype):
    x = hard_inputs(dtype)
    for scale in (global_scale(name), global_scale(name, 1e-3), global_scale(name, 1e20)):
        assert_same_bits(ours(x, name, scale), theirs(x, name, scale))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_nan_stays_nan(name, dtype):
    x = torch.randn(2, 4, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[0, 1, 3] = x[1, 2, 200] = torch.nan
    found, expected = ours(x, name, global_scale(name)), theirs(x, name, global_scale(name))
    assert found.isnan()[x.isnan()].all()
    if not name.startswith("mx"):  # their power of two of a NaN depends on its bits, which torch's tails keep
        assert_same_bits(found, expected)
    group = rounding_of(arguments(name), x, global_scale(name)).group or 256
    clean = ~x.unflatten(-1, (-1, group)).isnan().any(-1, keepdim=True).expand(-1, -1, -1, group).reshape(x.shape)
    assert_same_bits(found[clean], expected[clean])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ROUNDED), st.sampled_from(DTYPES), st.integers(0, 2**32), st.floats(-40, 40), st.floats(0, 12),
    st.floats(1e-3, 1e5),
)  # fmt: skip
def test_random_numbers(name, dtype, seed, exponent, spread, scale):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 256, generator=generator)
    x = x * 2.0 ** (exponent + spread * torch.randn(x.shape, generator=generator))
    x[torch.rand(x.shape, generator=generator) < 0.1] = 0.0
    given_scale = global_scale(name, scale)
    assert_same_bits(ours(x.to(dtype), name, given_scale), theirs(x.to(dtype), name, given_scale))


@pytest.mark.parametrize("name", ROUNDED)
def test_every_bfloat16(name):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = x[~x.isnan()]
    x = x[: len(x) // 256 * 256].reshape(1, -1, 256)
    mixed = x[:, :, torch.randperm(256, generator=torch.Generator().manual_seed(2))]
    for one in (x, mixed, x.transpose(1, 2).reshape(1, -1, 256)):
        assert_same_bits(ours(one, name, global_scale(name)), theirs(one, name, global_scale(name)))


@pytest.mark.parametrize("name", ROUNDED)
def test_views_and_blocks(name, monkeypatch):
    """Inputs that lie oddly in memory, worked through in several blocks."""
    monkeypatch.setattr(kernels, "_BLOCK", 512)
    x = torch.randn(256, 6, 3, generator=torch.Generator().manual_seed(3)).permute(2, 1, 0)
    assert_same_bits(ours(x, name, global_scale(name)), theirs(x, name, global_scale(name)))


def test_what_is_not_covered_goes_to_compressed_tensors():
    """Two dimensions have one scale for all tokens there; groups must fill the axis."""
    from compressed_tensors.quantization import QuantizationArgs

    x = torch.randn(6, 256, generator=torch.Generator().manual_seed(4))
    assert rounding_of(arguments("fp8"), x, None) is None
    assert torch.equal(fake_quantize_input(x, scheme_of(find_format("fp8"), []), None), theirs(x, "fp8", None))
    assert rounding_of(arguments("nvfp4"), x, None) is None
    assert rounding_of(arguments("mxfp4"), x.half(), None) is None
    lopsided = QuantizationArgs(num_bits=8, type="int", strategy="token", symmetric=False, dynamic=True)
    assert rounding_of(lopsided, x[None], None) is None
    narrow = QuantizationArgs(num_bits=4, type="int", strategy="token", symmetric=True, dynamic=True)
    assert rounding_of(narrow, x[None], None) is None
    with pytest.raises(RuntimeError, match="unflatten"):
        fake_quantize_input(x[:, :100], scheme_of(find_format("fp8-block"), []), None)


def test_the_gpu_kernel_in_tritons_interpreter():
    """In another process: Triton decides between interpreter and compiler when it is imported."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, __file__], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [f"{name}:{dtype}" for name in ROUNDED for dtype in DTYPES]


def interpret_kernel():
    """Compare the kernel on CPU tensors with compressed-tensors, format by format."""
    from clefquant.quantize.kernels_triton import launch

    for name in ROUNDED:
        for dtype in DTYPES:
            everything = hard_inputs(dtype)
            if not name.startswith("mx"):  # see above
                everything[0, 0, 5] = everything[0, 69, 70] = torch.nan
            for x in (everything[:, ::3], everything[:, :70, :96].contiguous()):
                if (rounding := rounding_of(arguments(name), x, global_scale(name))) is None:
                    continue
                for scale in (global_scale(name), global_scale(name, 1e20)):
                    rows = x.reshape(-1, rounding.group or x.shape[-1]).contiguous()
                    assert_same_bits(launch(rows, rounding, scale).view(x.shape), theirs(x, name, scale))
            print(f"{name}:{dtype}")


if __name__ == "__main__":
    interpret_kernel()
