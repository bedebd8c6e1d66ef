"""One pass over the weights gives their checksums and finds every NaN and infinity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from clefquant.release.artefact import sha256_file
from clefquant.release.headers import read_header
from clefquant.release.scan import scan


def test_checksums(tiny):
    found = scan(tiny.tensors)
    assert found.sha256 == {file.name: sha256_file(file) for file in tiny.shards}
    assert found.nonfinite == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@settings(max_examples=20)
@given(place=st.integers(0, 999), value=st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_every_nonfinite_value_is_found(tmp_path_factory, dtype, place, value):
    file = tmp_path_factory.mktemp("scan") / "w.safetensors"
    broken = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    broken[place] = value
    whole = torch.full((7,), torch.finfo(dtype).min, dtype=dtype)
    save_file({"broken": broken, "whole": whole, "bytes": torch.full((3,), 255, dtype=torch.uint8)}, file)
    assert scan(read_header(file)).nonfinite == ("broken",)
