"""The calibration pass: padding left out, every token counted, no difference to a record-by-record pass."""

import pytest
from transformers import AutoProcessor

from clefquant.errors import InputError
from clefquant.quantize.statistics import KIND, collect_statistics, read_statistics, write_statistics
from clefquant.release.artefact import provenance


def test_batched_equals_one_by_one(tiny, tiny_loaded, encoded):
    batched = collect_statistics(tiny_loaded.release, encoded)
    alone = collect_statistics(tiny_loaded.release, encoded, batch_tokens=1)
    assert set(batched) == {linear.name for unit in tiny.units for linear in unit.linears}
    tokens = sum(len(record.input_ids) for record in encoded)
    for name, value in batched.items():
        assert value.tokens == alone[name].tokens == tokens
        assert value.amax == pytest.approx(alone[name].amax, rel=1e-4)
        assert value.rms == pytest.approx(alone[name].rms, rel=1e-5)


def test_written_and_read(tiny_loaded, encoded, tmp_path):
    statistics = collect_statistics(tiny_loaded.release, encoded[:1])
    write_statistics(tmp_path / "s.json", statistics, provenance(KIND, 1, {}))
    assert read_statistics(tmp_path / "s.json") == statistics


def test_empty_set(tiny_loaded):
    with pytest.raises(InputError, match="no records"):
        collect_statistics(tiny_loaded.release, [])


def test_image_and_text_records_both_count(nano):
    from PIL import Image

    from clefquant.release.code import release_code

    code = release_code(nano.path)
    processor = AutoProcessor.from_pretrained(nano.path)
    question = {"bright": {"type": "noul", "instructions": "Is it bright?"}}
    text = {"state": "look", "questions": question}

    def collected(colour):
        records = (text, text | {"images": [Image.new("RGB", (96, 64), colour)]}, text)
        encoded = [code.encode_record(processor.tokenizer, record, processor=processor) for record in records]
        found = collect_statistics(nano, encoded)
        assert {value.tokens for value in found.values()} == {sum(len(record.input_ids) for record in encoded)}
        return found["model.language_model.layers.0.linear_attn.in_proj_qkv"]

    assert collected((250, 240, 10)).rms != collected((10, 20, 90)).rms, "the vision tower's output reaches the layers"
