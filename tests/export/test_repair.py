"""Repair: unshared scales, a missing index, unwritten formats, files of another save; never in place, never a guess."""

import json
import shutil

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from clefquant.errors import CheckFailed, InputError
from clefquant.export.audit import audit, has_errors
from clefquant.export.audit.decode import E2M1, E4M3, nearest_e4m3
from clefquant.export.release_folder import export_release
from clefquant.export.repair import repair
from clefquant.export.rescale import Member, common_scale
from clefquant.export.sums import SUMS_FILE
from clefquant.export.tables import shrink_tables
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import find_format
from clefquant.release.headers import read_backbone
from clefquant.release.release import INDEX_FILE


def test_lookup_tables_equal_torch():
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(E4M3, values, equal_nan=True)


@given(st.lists(st.floats(0, 448), min_size=1, max_size=50))
def test_rounding_to_e4m3_equals_torch(numbers):
    numbers = np.array(numbers, np.float32).astype(np.float64)
    expected = torch.tensor(numbers, dtype=torch.float32).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(nearest_e4m3(numbers), expected)


def _member(name: str, seed: int, divisor: float, rows: int = 8, groups: int = 4) -> Member:
    random = np.random.default_rng(seed)
    packed = random.integers(0, 256, (rows, groups * 8), np.uint8)
    return Member(name, packed, random.integers(64, 127, (rows, groups), np.uint8), divisor)


def _weights(member: Member, scale: np.ndarray, divisor: float) -> np.ndarray:
    values = np.stack([E2M1[member.packed & 15], E2M1[member.packed >> 4]], -1).reshape(len(scale), scale.shape[1], 16)
    return values.astype(np.float64) * E4M3[scale][..., None] / divisor


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 1.0))
def test_rescaling_moves_weights_by_at_most_a_sixteenth(seed, ratio):
    members = [_member("a", seed, 1000.0), _member("b", seed + 1, float(np.float32(1000.0 * ratio)))]
    common = common_scale(members)
    assert common is not None
    for member, done in zip(members, common.members, strict=True):
        before = _weights(member, member.scale, member.divisor)
        after = _weights(member, done.scale, common.divisor)
        assert (np.abs(after - before) <= np.abs(before) / 16 * (1 + 1e-6)).all()
        relative = np.linalg.norm(after - before) / np.linalg.norm(before)
        assert done.added_error == pytest.approx(relative, rel=1e-5, abs=1e-9)


def test_powers_of_two_add_nothing():
    members = [_member("a", 0, 1024.0), _member("b", 1, 256.0)]
    common = common_scale(members)
    assert common is not None
    assert [done.added_error for done in common.members] == [0, 0]


def test_a_ratio_out_of_range_is_refused():
    assert common_scale([_member("a", 0, 1e6), _member("b", 1, 1.0)]) is None


@pytest.fixture
def unshared(make_checkpoint, tmp_path):
    """An NVFP4 checkpoint where each member of a fused group was quantized under a divisor of its own."""
    folder = shutil.copytree(make_checkpoint("nvfp4"), tmp_path / "unshared")
    for name, info in read_backbone(folder).items():
        if name.endswith("in_proj_z.weight_global_scale"):
            _poke(info, info.read(), 3.0)
        if name.endswith("k_proj.input_global_scale"):
            _poke(info, info.read(), 2.0)
    return folder


def _poke(info, data: bytes, factor: float) -> None:
    with info.file.open("r+b") as handle:
        handle.seek(info.start)
        handle.write((np.frombuffer(data, "<f4") * np.float32(factor)).tobytes())


def test_unshared_scales_are_made_equal_and_reported(unshared, tmp_path):
    assert {f.check for f in audit(unshared) if f.severity == "error"} == {"fused-scale"}
    before = {file.name: file.read_bytes() for file in unshared.iterdir()}
    done = repair(unshared, tmp_path / "out")
    assert done.left == []
    assert not has_errors(audit(done.path))
    assert {file.name: file.read_bytes() for file in unshared.iterdir()} == before
    assert any("in_proj_qkv/in_proj_z" in text and "added error" in text for text in done.actions)
    old, new = load_file(unshared / "model.safetensors"), load_file(done.path / "model.safetensors")
    scheme = scheme_of(find_format("nvfp4"), ["Linear"])
    compressor = BaseCompressor.get_value_from_registry(scheme.format.value)
    for module, added in done.added_error.items():
        states = [{k.rsplit(".", 1)[1]: v for k, v in t.items() if k.startswith(f"{module}.")} for t in (old, new)]
        x, y = (compressor.decompress(state, scheme)["weight"].double() for state in states)
        assert float((x - y).norm() / x.norm()) == pytest.approx(added, abs=2e-3)  # decompressed in BF16
        assert added < 1 / 16


def test_a_scale_that_cannot_be_shared_is_refused(unshared, tmp_path):
    info = next(i for n, i in read_backbone(unshared).items() if n.endswith("in_proj_z.weight_global_scale"))
    _poke(info, info.read(), 1e7)
    with pytest.raises(CheckFailed, match="E4M3's range"):
        repair(unshared, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_index_formats_leftovers_and_sums(edit, tmp_path):
    folder = edit.folder
    shutil.copyfile(next(folder.glob("model-*.safetensors")), folder / "model-00001-of-00009.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"old")
    edit.json(INDEX_FILE, lambda index: index["weight_map"].update({"scale": "joint_head.safetensors"}))
    edit.json("config.json", lambda c: [g.pop("format") for g in c["quantization_config"]["config_groups"].values()])
    done = repair(folder, tmp_path / "out")
    assert done.left == []
    assert [f for f in audit(done.path) if f.severity != "info"] == []
    assert not (done.path / "model-00001-of-00009.safetensors").exists()
    groups = json.loads((done.path / "config.json").read_text())["quantization_config"]["config_groups"].values()
    assert {group["format"] for group in groups} == {"float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"}
    assert (done.path / SUMS_FILE).is_file()
    assert sum("another save" in text for text in done.actions) == 2


def test_a_missing_index_is_written(edit, tmp_path):
    (edit.folder / INDEX_FILE).unlink()
    done = repair(edit.folder, tmp_path / "out")
    assert done.left == []
    assert set(json.loads((done.path / INDEX_FILE).read_text())["weight_map"]) == set(edit.index)


def test_shards_that_transformers_would_pass_over_are_numbered(edit, tmp_path):
    first = next(edit.folder.glob("model-*.safetensors"))
    first.rename(edit.folder / "model.safetensors")
    edit.reindex()
    before = read_backbone(edit.folder)
    done = repair(edit.folder, tmp_path / "out")
    assert done.left == []
    assert any("numbered" in text for text in done.actions)
    assert not (done.path / "model.safetensors").exists()
    after = read_backbone(done.path)
    assert {name: info.read() for name, info in after.items()} == {name: info.read() for name, info in before.items()}


def test_files_whose_checksum_was_renewed_are_named(copy, tmp_path):
    (copy / "chat_template.jinja").write_text("edited by hand")
    done = repair(copy, tmp_path / "out")
    told = [text for text in done.actions if text.startswith("chat_template.jinja: the bytes are not those")]
    assert len(told) == 1
    assert not any("tokenizer.json" in text for text in done.actions)
    (copy / SUMS_FILE).unlink()
    assert f"{SUMS_FILE} was written" in repair(copy, tmp_path / "second").actions


def test_published_shapes_are_repaired_into_themselves(published, tmp_path):
    done = repair(published, tmp_path / "out")
    assert done.left == []
    before, after = read_backbone(published), read_backbone(done.path)
    assert all(after[name].read() == info.read() for name, info in before.items())


def test_damaged_weights_are_not_blessed(copy, tmp_path):
    file = next(copy.glob("model-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CheckFailed, match="differ from SHA256SUMS"):
        repair(copy, tmp_path / "out")
    file.write_bytes(bytes(data[:-9]))
    with pytest.raises(CheckFailed, match="cannot be read"):
        repair(copy, tmp_path / "out")


def test_damaged_int8_tables_are_not_blessed(make_checkpoint, tmp_path):
    checkpoint, release = tmp_path / "checkpoint", tmp_path / "release"
    shrink_tables(make_checkpoint("fp8"), checkpoint)
    export_release(checkpoint, release)
    tables = release / "clef_head" / "tables_int8.safetensors"
    data = bytearray(tables.read_bytes())
    data[-1] ^= 1
    tables.write_bytes(data)
    with pytest.raises(CheckFailed, match="differ from SHA256SUMS"):
        repair(release, tmp_path / "repaired")
    assert not (tmp_path / "repaired").exists()


def test_never_in_place(release):
    with pytest.raises(InputError, match="not empty"):
        repair(release, release)
    with pytest.raises(InputError, match="lies inside"):
        repair(release, release / "repaired")
