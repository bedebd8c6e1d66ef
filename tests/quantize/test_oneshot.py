"""Our checkpoints against llm-compressor's own ``oneshot`` on the whole model."""

from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.statistics import collect_statistics
from clefquant.recipes.config import config_groups, ignored_linears
from clefquant.recipes.fused import fused_gdn_inputs
from clefquant.recipes.layout import make_layout
from clefquant.release.load import load_release

MIXTURES = {
    "nvfp4": ("nvfp4",),
    "published formats": ("nvfp4", "fp8", "mxfp4", "bf16"),
    "other formats": ("int8", "mxfp8", "nvfp4a16", "mxfp4a16"),
}


def _oneshot(release, units, encoded, out, monkeypatch):
    """The whole model in bfloat16 through llm-compressor, with the GDN pair added and its rewriting of norms left
    out.
    """
    from importlib import import_module

    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from torch.utils.data import DataLoader

    entry = import_module("llmcompressor.entrypoints.oneshot")  # the package re-exports the function under this name
    assert hasattr(entry, "norm_calibration_context")
    monkeypatch.setattr(entry, "norm_calibration_context", lambda *_, **__: nullcontext())
    loaded = load_release(release, dtype=torch.bfloat16)
    data = {"pipeline": "datafree"}
    if encoded:
        rows = [
            {"input_ids": torch.tensor([e.input_ids]), "attention_mask": torch.ones(1, len(e.input_ids)).long()}
            for e in encoded
        ]
        data = {"pipeline": "basic", "dataset": DataLoader(rows, batch_size=None)}
    recipe = QuantizationModifier(config_groups=config_groups(release, units), ignore=ignored_linears(release, units))
    with fused_gdn_inputs():
        oneshot(model=loaded.model.language_model, recipe=recipe, **data)
    loaded.model.language_model.save_pretrained(out, save_compressed=True)
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("formats", MIXTURES.values(), ids=MIXTURES)
def test_bits_equal_oneshot(tiny, encoded, formats, tmp_path, monkeypatch):
    units = {unit.name: formats[i % len(formats)] for i, unit in enumerate(tiny.units)}
    encoded = encoded[:2]  # bfloat16 is slow on a CPU
    statistics = collect_statistics(tiny, encoded, dtype=torch.bfloat16)
    _compare(tiny, units, statistics, encoded, tmp_path, monkeypatch)


def test_formats_with_groups_of_128_equal_oneshot(nano, tmp_path, monkeypatch):
    """They do not fit the tiny model, and need no data."""
    formats = ("fp8-block", "w4a16")
    units = {unit.name: formats[i % len(formats)] for i, unit in enumerate(nano.units)}
    _compare(nano, units, {}, [], tmp_path, monkeypatch)


def _compare(release, units, statistics, encoded, tmp_path, monkeypatch):
    layout = make_layout(release, units)
    checkpoint = write_checkpoint(release, layout, to_nearest(release, layout, statistics), tmp_path / "ours")
    ours = load_file(checkpoint / "model.safetensors")
    theirs = _oneshot(release, units, encoded, tmp_path / "theirs", monkeypatch)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        if name.endswith("input_global_scale"):  # theirs ran eager attention record by record
            torch.testing.assert_close(ours[name], tensor, rtol=0.02, atol=0)
        else:
            assert torch.equal(ours[name].view(torch.uint8), tensor.view(torch.uint8)), name
