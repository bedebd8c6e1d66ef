"""Block scales of 4-bit formats: hand-worked bytes, and errors that never grow."""

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from hypothesis import given, settings
from hypothesis import strategies as st

from clefquant.errors import InputError
from clefquant.quantize.scales import Scales
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.formats import find_format
from clefquant.release.units import Linear, Unit

NAME = "model.language_model.layers.0.mlp.down_proj"


def _quantize(weight, fmt, scales):
    unit = Unit("layers.0.mlp", 0, "mlp", ((Linear(NAME, *weight.shape),),))
    return quantize_unit(unit, {NAME: weight}, find_format(fmt), {NAME: 1.0}, scales=scales)[NAME]


def _block_errors(weight, fmt, scales):
    """Squared error [O, G] of codes times scale in float32, as a kernel multiplies them."""
    tensors = _quantize(weight, fmt, scales).tensors
    codes = unpack_fp4_from_uint8(tensors["weight_packed"], *weight.shape, dtype=torch.float32)
    scale = tensors["weight_scale"]
    scale = scale.float() / tensors["weight_global_scale"] if fmt == "nvfp4" else 2.0 ** (scale.float() - 127)
    exact = weight.float().unflatten(-1, (-1, find_format(fmt).group))
    return (codes.view_as(exact) * scale[..., None] - exact).square().sum(-1)


#: Largest value of a block to its E8M0 byte (127 = scale 1), by hand: 1.0 is 2^0, so floor gives 2^-2 = byte 125.
BYTES = {
    "floor": {1.0: 125, 1.5: 125, 1.75: 125, 1.9921875: 125, 2.0: 126, 6.0: 127, 7.0: 127, 8.0: 128, 0.0: 0},
    "even": {1.0: 125, 1.5: 125, 1.75: 126, 1.9921875: 126, 2.0: 126, 6.0: 127, 7.0: 128, 8.0: 128, 0.0: 0},
    "ceil": {1.0: 125, 1.5: 126, 1.75: 126, 1.9921875: 126, 2.0: 126, 6.0: 128, 7.0: 128, 8.0: 128, 0.0: 0},
}


@pytest.mark.parametrize("choice", BYTES)
@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp4a16"])
def test_scale_bytes(choice, fmt):
    cases = BYTES[choice]
    weight = torch.zeros(len(cases), 32, dtype=torch.bfloat16)
    weight[:, 3] = -torch.tensor(list(cases))
    found = _quantize(weight, fmt, Scales(mxfp4=choice)).tensors["weight_scale"]
    assert dict(zip(cases, found.flatten().tolist(), strict=True)) == cases


def test_four_or_six_by_hand():
    """A block of 4, 3 and 2 is exact when its largest value becomes 4, and is not when it becomes 6."""
    weight = torch.zeros(2, 16, dtype=torch.bfloat16)
    weight[0, :3] = torch.tensor([4.0, 3.0, 2.0])  # a = 4: exact when it becomes 4
    weight[1, 0] = 24.0
    result = _quantize(weight, "nvfp4a16", Scales(nvfp4="four-over-six"))
    scales = result.tensors["weight_scale"].float() / result.tensors["weight_global_scale"]
    assert scales.flatten().tolist() == [1.0, 4.0]
    assert torch.equal(result.weight, weight.float())
    assert not torch.equal(_quantize(weight, "nvfp4a16", Scales()).weight, weight.float())


@pytest.mark.parametrize(
    ("fmt", "chosen", "plain"),
    [
        ("nvfp4", Scales(nvfp4="four-over-six"), Scales()),
        ("mxfp4", Scales(mxfp4="least-error"), Scales()),
        ("mxfp4", Scales(mxfp4="least-error"), Scales(mxfp4="floor")),
    ],
    ids=["nvfp4", "mxfp4-even", "mxfp4-floor"],
)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tail=st.floats(0, 2), exponent=st.integers(-20, 10))
def test_no_block_is_worse_than_with_plain_scales(fmt, chosen, plain, seed, tail, exponent):
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(8, 64, generator=generator)
    weight = (normal * normal.abs() ** tail * 2.0**exponent).bfloat16()
    assert (_block_errors(weight, fmt, chosen) <= _block_errors(weight, fmt, plain) * (1 + 1e-6)).all()


def test_four_over_six_takes_a_tenth_off_the_error():
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    better, usual = (_block_errors(weight, "nvfp4", scales).sum() for scales in (Scales("four-over-six"), Scales()))
    assert better < 0.9 * usual


def test_only_the_block_scales_and_codes_of_the_format_change():
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    plain, chosen = (_quantize(weight, "nvfp4", scales).tensors for scales in (Scales(), Scales("four-over-six")))
    assert chosen.keys() == plain.keys()
    assert torch.equal(chosen["weight_global_scale"], plain["weight_global_scale"])
    assert (chosen["weight_scale"].float() > plain["weight_scale"].float()).any()
    other = _quantize(weight, "mxfp4", Scales("four-over-six")).tensors
    assert all(torch.equal(other[name], t) for name, t in _quantize(weight, "mxfp4", Scales()).tensors.items())


def test_bad_choices():
    with pytest.raises(InputError, match="allowed: max, four-over-six"):
        Scales(nvfp4="even")
    with pytest.raises(InputError, match="no unit is mxfp4"):
        Scales(mxfp4="floor").check(["nvfp4", "bf16"])
    Scales(mxfp4="floor").check(["mxfp4a16", "bf16"])


def test_choices_of_families_without_units_are_left_out_of_a_planned_layout():
    chosen = Scales("four-over-six", "floor")
    assert chosen.used(["fp8", "nvfp4a16", "bf16"]) == Scales("four-over-six")
    assert chosen.used(["mxfp4", "nvfp4"]) == chosen
    assert chosen.used(["fp8"]) == Scales()
