"""int8 tables: the bound, the report, the marker, the way back, and targets that are whole or absent."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from clefquant.errors import InputError
from clefquant.export import tables as module
from clefquant.export.audit import audit, has_errors
from clefquant.export.int8_rows import dequantize_rows, quantize_rows
from clefquant.export.release_folder import export_release
from clefquant.export.tables import restore_tables, shrink_tables
from clefquant.export.tokens import token_texts
from clefquant.release.code import release_code
from clefquant.release.headers import read_backbone
from clefquant.release.load import load_release
from clefquant.release.release import open_release
from clefquant.release.shards import write_index

TABLES_FILE = "clef_head/tables_int8.safetensors"
EMBEDDING = "model.language_model.embed_tokens.weight"


def _exact_excess(x: torch.Tensor) -> float:
    """Largest |x - read| - scale / 2, computed in float64."""
    rows = quantize_rows(x)
    error = (x.double() - dequantize_rows(rows).double()).abs()
    return float((error - rows.scale.double()[:, None] / 2).max())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(-30, 30))
def test_the_error_is_at_most_half_a_scale(seed, magnitude):
    words = np.random.default_rng(seed).integers(0, 2**16, (40, 64), np.uint16)
    words &= 0xBFFF  # below 2, any sign, subnormals among them
    x = torch.from_numpy((words.astype(np.uint32) << 16).view(np.float32)).mul(2.0 ** int(magnitude)).bfloat16().float()
    assert _exact_excess(x) <= 0


def test_ties_zero_rows_and_extremes():
    x = (
        torch.tensor([[0.0] * 4, [127.0, 0.5, 1.5, -2.5], [3e38, -3e38, 1.0, 0.0], [1e-38, 0.0, 0.0, 0.0]])
        .bfloat16()
        .float()
    )
    rows = quantize_rows(x)
    assert rows.values[0].tolist() == [0, 0, 0, 0]
    assert rows.scale[0] == 1
    assert _exact_excess(x) <= 0
    assert rows.values.abs().max() <= 127


@pytest.fixture
def shrunk(mixed, tmp_path):
    return shrink_tables(mixed, tmp_path / "int8")


def test_tables_move_and_everything_else_stays(mixed, shrunk):
    before, after = read_backbone(mixed), read_backbone(shrunk.path)
    assert set(before) - set(after) == {EMBEDDING, "lm_head.weight"}
    assert all(after[name].read() == before[name].read() for name in after)
    for file in mixed.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name not in _changed(shrunk.path):
            assert (shrunk.path / file.name).read_bytes() == file.read_bytes()
    config = json.loads((shrunk.path / "config.json").read_text())
    assert config["clefquant"]["tables"] == "int8"
    assert not has_errors(audit(shrunk.path))


def _changed(folder) -> set[str]:
    return {"config.json", "joint_head_config.json", "model.safetensors.index.json"}


def test_the_report_is_measured(mixed, shrunk):
    held, source = load_file(shrunk.path / TABLES_FILE), load_file(mixed / "model.safetensors")
    for report, name in zip(shrunk.tables, (EMBEDDING, "lm_head.weight"), strict=True):
        x = source[name].double()
        read = held[f"{report.table}.weight"].double() * held[f"{report.table}.scale"].double()[:, None]
        assert report.relative_error == pytest.approx(float((x - read).norm() / x.norm()), rel=1e-4)
        cosine = torch.nn.functional.cosine_similarity(x, read, dim=1)
        cosine[x.norm(dim=1) == 0] = 1
        assert report.cosine_mean == pytest.approx(float(cosine.mean()), abs=1e-6)
        assert report.cosine_worst == pytest.approx(float(cosine.min()), abs=1e-6)
        assert report.worst[0]["row"] == int(cosine.argmin())
        assert report.zero_rows == int((x.norm(dim=1) == 0).sum())
    assert shrunk.saved_bytes > 0


def test_the_release_loader_stops_at_the_marker_and_accepts_what_was_restored(mixed, shrunk, tmp_path):
    code = release_code(shrunk.path)
    with pytest.raises(TypeError, match="requires_clef_vllm"):
        code.load_release_model(shrunk.path, device="cpu", dtype=torch.float32)
    restored = restore_tables(shrunk.path, tmp_path / "bf16")
    assert (restored / "joint_head_config.json").read_bytes() == (mixed / "joint_head_config.json").read_bytes()
    assert not (restored / TABLES_FILE).exists()
    assert json.loads((restored / "config.json").read_text())["clefquant"]["tables"] == "bf16"
    held = load_file(shrunk.path / TABLES_FILE)
    read = (held["lm_head.weight"].float() * held["lm_head.scale"][:, None]).bfloat16()
    tensors = read_backbone(restored)
    assert tensors["lm_head.weight"].read() == read.view(torch.uint8).numpy().tobytes()
    assert not has_errors(audit(restored))


@pytest.mark.parametrize("shards", [1, 2])
def test_restored_tables_are_loaded_whatever_the_shards_were_called(tiny, tmp_path, shards):
    """transformers reads ``model.safetensors`` alone when there is one, and makes up what it does not hold."""
    folder = shutil.copytree(tiny.path, tmp_path / "source")
    if shards == 2:
        held = load_file(folder / "model.safetensors")
        names = sorted(held)
        (folder / "model.safetensors").unlink()
        weight_map = {}
        for number, part in enumerate((names[::2], names[1::2])):
            file = f"model-{number + 1:05d}-of-00002.safetensors"
            save_file({name: held[name] for name in part}, folder / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
        write_index(folder, weight_map, sum(tensor.nbytes for tensor in held.values()))
    restored = restore_tables(shrink_tables(folder, tmp_path / "int8").path, tmp_path / "bf16")
    loaded, written = load_release(open_release(restored)), read_backbone(restored)
    for name in (EMBEDDING, "lm_head.weight"):
        read = loaded.module(name.removesuffix(".weight")).weight.detach().bfloat16()
        assert read.view(torch.uint8).numpy().tobytes() == written[name].read()
    assert not has_errors(audit(restored))


def test_a_release_without_int8_tables_loads_with_the_release_loader(release, encoded):
    from transformers import CompressedTensorsConfig

    config = CompressedTensorsConfig(run_compressed=False)  # weights come back in BF16
    loaded = load_release(open_release(release), dtype=torch.bfloat16, quantization_config=config)
    batch = loaded.code.collate_records([encoded[0]], loaded.processor.tokenizer.pad_token_id, loaded.device)
    assert all(bool(logits.isfinite().all()) for logits in loaded.model(batch)[0])


def test_in_place_and_back(mixed, tmp_path):
    folder = shutil.copytree(mixed, tmp_path / "checkpoint")
    shrink_tables(folder)
    assert (folder / TABLES_FILE).is_file()
    restore_tables(folder)
    assert not (folder / TABLES_FILE).exists()
    assert set(read_backbone(folder)) == set(read_backbone(mixed))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_between_the_renames_is_mended_by_the_next_command(mixed, shrunk, tmp_path, renames):
    """The copy is whole and called ``.checkpoint.new``; then the old one goes away and the copy takes its place."""
    folder, new, old = (tmp_path / "here" / name for name in ("checkpoint", ".checkpoint.new", ".checkpoint.old"))
    shutil.copytree(mixed, folder if renames == 0 else old)
    shutil.copytree(shrunk.path, folder if renames == 2 else new)
    if renames == 0:
        shrink_tables(folder)
    else:
        with pytest.raises(InputError, match="has int8 tables already"):
            shrink_tables(folder)
    assert (folder / TABLES_FILE).is_file()
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_a_shrunk_checkpoint_exports_clean(shrunk, tmp_path):
    done = export_release(shrunk.path, tmp_path / "release")
    findings = audit(done.path)
    assert [finding for finding in findings if finding.severity != "info"] == []
    card = (done.path / "README.md").read_text()
    assert "INT8, one scale per row" in card
    assert "CompressedTensorsConfig" not in card


def test_what_cannot_be_shrunk_is_refused(mixed, shrunk, release, tmp_path):
    with pytest.raises(InputError, match="has int8 tables already"):
        shrink_tables(shrunk.path)
    with pytest.raises(InputError, match="nothing to restore"):
        restore_tables(mixed)
    with pytest.raises(InputError, match="exported release"):
        shrink_tables(release)
    tied = shutil.copytree(mixed, tmp_path / "tied")
    config = json.loads((tied / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = True
    (tied / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="ties lm_head"):
        shrink_tables(tied)


def test_damaged_rows_are_named(mixed, tmp_path):
    folder = shutil.copytree(mixed, tmp_path / "damaged")
    info = read_backbone(folder)[EMBEDDING]
    with info.file.open("r+b") as handle:
        handle.seek(info.start + 2 * 64 * 7)
        handle.write(b"\xff\x7f")
    with pytest.raises(InputError, match=r"row 7 of embed_tokens"):
        shrink_tables(folder)
    assert not (folder / TABLES_FILE).exists()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_failure_leaves_the_original_alone(mixed, tmp_path, monkeypatch, in_place):
    folder = shutil.copytree(mixed, tmp_path / "checkpoint")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "copy_shard", full)
    with pytest.raises(OSError, match="No space"):
        shrink_tables(folder, None if in_place else tmp_path / "out")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_token_texts_of_byte_level_vocabularies(tmp_path):
    vocabulary = {"Ġhello": 0, "Ã©": 1}
    value = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": 2, "content": "<|end|>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    assert token_texts(tmp_path, [0, 1, 2, 9]) == [" hello", "é", "<|end|>", "row 9"]
