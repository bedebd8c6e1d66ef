"""Every format's tensors: stored as it says, and each wrong dtype, shape or missing tensor named."""

import shutil

import pytest
import torch

from clefquant.recipes.formats import FORMATS

from .conftest import Edit, errors

FITTING = [fmt.name for fmt in FORMATS if fmt.group <= 64 and not fmt.block]


@pytest.fixture(params=FITTING)
def one_format(request, make_checkpoint, tmp_path) -> tuple[Edit, str]:
    """A checkpoint in one format, and a module of it that no other shares a matrix product with."""
    edit = Edit(shutil.copytree(make_checkpoint(request.param), tmp_path / "copy"))
    edit.sums()
    scale = next(name for name in sorted(edit.index) if name.endswith("out_proj.weight_scale"))
    return edit, scale.removesuffix(".weight_scale")


def test_it_is_clean(one_format):
    assert errors(one_format[0].folder) == {}


def _names(edit: Edit, module: str) -> list[str]:
    return [name for name in sorted(edit.index) if name.startswith(f"{module}.weight")]


def test_a_wrong_dtype(one_format):
    edit, module = one_format
    for name in _names(edit, module):
        fresh = Edit(shutil.copytree(edit.folder, edit.folder.parent / name))
        fresh.tensor(name, lambda tensor: torch.ones(tensor.shape, dtype=torch.int16))
        found = errors(fresh.folder)
        assert [f.tensor for f in found["wrong-dtype"]] == [name]


def _twice(tensor: torch.Tensor) -> torch.Tensor:
    raw = tensor.view(torch.uint8)
    return torch.cat([raw, raw]).view(tensor.dtype)


def test_a_wrong_shape(one_format):
    edit, module = one_format
    for name in _names(edit, module):
        fresh = Edit(shutil.copytree(edit.folder, edit.folder.parent / name))
        fresh.tensor(
            name, lambda tensor: torch.cat([tensor.view(torch.uint8), tensor.view(torch.uint8)]).view(tensor.dtype)
        )
        found = errors(fresh.folder)
        assert [f.tensor for f in found["wrong-shape"]] == [name]


def test_a_missing_tensor(one_format):
    edit, module = one_format
    for name in _names(edit, module):
        fresh = Edit(shutil.copytree(edit.folder, edit.folder.parent / name))
        fresh.tensor(name, lambda tensor: None)
        found = errors(fresh.folder)
        assert name in [f.tensor for f in found["missing-tensor"]]
