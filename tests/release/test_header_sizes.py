"""A header's byte ranges are those of its types and shapes, in every type that safetensors defines."""

import pytest
import torch
from safetensors.torch import save_file

from clefquant.errors import InputError
from clefquant.release.headers import read_backbone, read_header
from clefquant.release.shards import Entry, header_bytes


def written(path, dtype, shape, size):
    path.write_bytes(header_bytes({"w": Entry(dtype, shape, size)}) + bytes(size))
    return path


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("BF16", (4, 8), 32),  # the bytes of half the rows
        ("BF16", (4, 8), 128),
        ("U8", (), 2),
        ("F4", (4, 8), 32),  # two elements are one byte
        ("F4", (3, 1), 1),  # a byte and a half
        ("F99", (4, 8), 32),
    ],
)
def test_other_bytes_than_type_and_shape_take(tmp_path, dtype, shape, size):
    message = rf"gives w {size} bytes, but {dtype} \[.*\] takes others.*Download"
    with pytest.raises(InputError, match=message):
        read_backbone(written(tmp_path / "model.safetensors", dtype, shape, size).parent)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
        torch.bfloat16, torch.float16, torch.int16, torch.float32, torch.int32, torch.float64, torch.int64,
        torch.complex64,
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 5)])
def test_what_safetensors_writes_is_read(tmp_path, dtype, shape):
    tensor = torch.zeros(shape, dtype=torch.uint8).to(dtype)
    save_file({"w": tensor}, tmp_path / "x.safetensors")
    found = read_header(tmp_path / "x.safetensors")["w"]
    assert (found.shape, found.bytes, found.fits) == (shape, tensor.nbytes, True)


def test_packed_types(tmp_path):
    assert read_header(written(tmp_path / "x.safetensors", "F4", (4, 8), 16))["w"].fits
    assert read_header(written(tmp_path / "x.safetensors", "F6_E2M3", (4, 8), 24))["w"].fits
