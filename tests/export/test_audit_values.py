"""Zero and negative scales are counted exactly, whatever the weights under them are stored in."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clefquant.export.audit.contents import _count, _Counts, check_contents
from clefquant.export.audit.decode import bf16_to_float
from clefquant.export.audit.files import check_sums
from clefquant.export.audit.folder import read_folder
from clefquant.progress import SILENT


def judged(tmp_path, tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, str]]:
    save_file(tensors, tmp_path / "model.safetensors")
    with SILENT.task("", None) as task:
        findings = check_contents(read_folder(tmp_path), task)[1]
    return [(finding.severity, finding.check, finding.message) for finding in findings]


def lost(zero: int, weights: int) -> list[tuple[str, str, str]]:
    message = f"m.weight_scale holds {zero} zero scales, over {weights} weights that are not zero and vanish"
    return [("error", "zero-scale", message)]


WEIGHTS = {
    "one byte": ("weight", torch.tensor([[1, 0, 2, 3], [0, 4, 0, 0], [5, 6, 7, 8]], dtype=torch.int8), 4),
    # nibble 8 is minus zero
    "nibbles": ("weight_packed", torch.tensor([[0x10, 0x08], [0x21, 0x80], [0x11, 0x11]], dtype=torch.uint8), 3),
    "two bytes": ("weight", torch.tensor([[1.0, 0, 2, 0], [3, 0, 0, 0], [4, 5, 6, 7]], dtype=torch.bfloat16), 3),
}


@pytest.mark.parametrize("stored", WEIGHTS)
def test_weights_that_vanish_under_zero_scales(tmp_path, stored):
    name, weight, vanishing = WEIGHTS[stored]
    scale = torch.tensor([0.0, 0.0, 1.0])[:, None].to(torch.bfloat16)
    assert judged(tmp_path, {f"m.{name}": weight, "m.weight_scale": scale}) == lost(2, vanishing)


def test_weights_that_do_not_fit_their_scales_all_count(tmp_path):
    tensors = {
        "m.weight": torch.tensor([[1, 2, 0], [3, 0, 4]], dtype=torch.int8),
        "m.weight_scale": torch.tensor([0.0, 1.0, 1.0, 1.0]),
    }
    assert judged(tmp_path, tensors) == lost(1, 4)


def test_negative_scales(tmp_path):
    scale = torch.tensor([-1.0, 2.0, -0.5]).to(torch.bfloat16)
    assert judged(tmp_path, {"m.weight_scale": scale}) == [
        ("error", "negative-scale", "m.weight_scale holds 2 negative scales")
    ]


def test_bf16_is_the_upper_half_of_a_float():
    assert bf16_to_float(np.array([0x3F80, 0xC000, 0x0000], np.uint16)).tolist() == [1.0, -2.0, 0.0]


def test_a_remark_says_where_and_what_to_do(tmp_path):
    (finding,) = check_sums(read_folder(tmp_path), {})
    assert (finding.severity, finding.check, finding.file, finding.tensor) == (
        "info",
        "no-checksums",
        "SHA256SUMS",
        None,
    )
    assert "there is no SHA256SUMS" in finding.message
    assert "clefquant export" in finding.remedy


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_value_is_judged(tmp_path, dtype, count):
    values = torch.ones(count, dtype=dtype)
    values[-1] = torch.inf
    ((severity, check, message),) = judged(tmp_path, {"m.bias": values})
    assert (severity, check) == ("error", "not-finite")
    assert "holds 1 values" in message


def test_a_rest_of_a_value_is_left_to_the_header_s_check():
    for dtype, block in (("BF16", b"\x80\x7f\x80"), ("F16", b"\x00\x7c\x00"), ("F32", b"\x00\x00\x80\x7f\x00")):
        counts = _Counts()
        _count("m.weight_scale", dtype, block, counts)
        assert counts.not_finite == 1
