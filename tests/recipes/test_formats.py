"""What each format stores of a matrix, by hand."""

import math

import pytest

from clefquant.errors import InputError
from clefquant.recipes.formats import BF16, FORMATS, find_format
from clefquant.release.units import Linear

LINEAR = Linear("m", 320, 256)
#: Bytes beside the weights themselves.
SCALES = {
    "fp8": 320 * 2, "fp8-block": 3 * 2 * 2, "mxfp8": 320 * 8, "int8": 320 * 2, "nvfp4": 320 * 16 + 4 + 4,
    "nvfp4a16": 320 * 16 + 4, "mxfp4": 320 * 8, "mxfp4a16": 320 * 8, "w4a16": 320 * 2 * 2 + 2 * 8,
}  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_bytes(fmt):
    weights = 320 * 256 // (2 if fmt.four_bit else 1)
    assert fmt.tensor_bytes(LINEAR) == weights + SCALES[fmt.name]
    assert find_format(fmt.name) is fmt


def test_bf16_is_the_weight_alone():
    assert BF16.stored(LINEAR) == {"weight": ("BF16", (320, 256))}
    assert not BF16.four_bit


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_sizes_it_cannot_store(fmt):
    step = {"fp8": 1, "int8": 1, "nvfp4": 16, "nvfp4a16": 16, "fp8-block": 128, "w4a16": 128}.get(fmt.name, 32)
    assert fmt.obstacle(Linear("m", 3, 3 * step)) is None
    if step > 1:
        assert f"input size {3 * step - 1} is not a multiple of {fmt.name}'s {step}" in str(
            fmt.obstacle(Linear("m", 3, 3 * step - 1))
        )


def test_blocks_at_the_edge_have_a_scale_of_their_own():
    dtype, shape = find_format("fp8-block").stored(Linear("m", 129, 384))["weight_scale"]
    assert (dtype, shape, math.prod(shape)) == ("BF16", (2, 3), 6)


def test_an_unknown_name_lists_what_is_allowed():
    with pytest.raises(InputError, match=r"unknown format 'fp3'; allowed: fp8, .*w4a16 \(or bf16 in a layout\)"):
        find_format("fp3")
