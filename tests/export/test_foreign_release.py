"""A release nobody here wrote goes through whole: clef-finetune's own tiny one (four layers, heads of 16, bytes)."""

import pytest
import torch

from clefquant.errors import InputError
from clefquant.export.audit import audit
from clefquant.export.release_folder import export_release
from clefquant.quantize.model import quantize_layout
from clefquant.quantize.simulate import simulated
from clefquant.recipes.formats import FORMATS
from clefquant.recipes.layout import uniform_layout
from clefquant.release.load import LoadedRelease, option_logits

FITTING = [fmt for fmt in FORMATS if fmt.name not in ("fp8-block", "w4a16")]


@pytest.mark.parametrize("fmt", FITTING, ids=lambda fmt: fmt.name)
def test_is_quantized_exported_and_loads(tiny, tiny_loaded, encoded, statistics, make_checkpoint, tmp_path, fmt):
    from transformers import CompressedTensorsConfig

    release = tmp_path / "release"
    export_release(make_checkpoint(fmt.name), release, base_model="Cloudflare/clef-flash")
    assert [found for found in audit(release) if found.severity == "error"] == []
    model, processor = tiny_loaded.code.load_release_model(
        release, device="cpu", dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    loaded = LoadedRelease(tiny, model.float().eval(), processor, tiny_loaded.code)
    amax = {name: value.amax for name, value in statistics.items()}
    with simulated(tiny_loaded, quantize_layout(tiny, uniform_layout(tiny, fmt.name).units, amax)):
        expected = dict(option_logits(tiny_loaded, encoded[:2]))
    for index, questions in option_logits(loaded, encoded[:2]):
        for got, wanted in zip(questions, expected[index], strict=True):
            torch.testing.assert_close(got.softmax(0), wanted.softmax(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt not in FITTING], ids=lambda fmt: fmt.name)
def test_sizes_a_format_cannot_store_are_named(tiny, fmt):
    with pytest.raises(InputError, match=rf"in_proj_qkv: input size 64 is not a multiple of {fmt.name}'s 128 \(and 20"):
        uniform_layout(tiny, fmt.name)
