"""The auditor on files: checksums, index, leftovers, pointers, what is missing."""

import json
import os
import shutil

import pytest

from clefquant.export.audit import audit
from clefquant.export.sums import SUMS_FILE
from clefquant.release.release import INDEX_FILE

from .conftest import errors


def shard(folder):
    return sorted(folder.glob("model-*.safetensors"))[0]


def test_a_changed_byte(copy):
    file = shard(copy)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    found = errors(copy)
    assert [f.file for f in found["checksum-changed"]] == [file.name]


def test_a_truncated_shard(copy):
    file = shard(copy)
    file.write_bytes(file.read_bytes()[:-100])
    found = errors(copy)
    assert [f.file for f in found["truncated"]] == [file.name]
    assert "checksum-changed" in found


def test_missing_extra_and_unreadable_lines(copy):
    (copy / "generation_config.json").unlink()
    (copy / "extra.json").write_text("{}")
    (copy / "notes.txt").write_text("mine")
    with (copy / SUMS_FILE).open("a") as handle:
        handle.write("not a line\n")
    found = errors(copy)
    assert found["checksum-missing"][0].file == "generation_config.json"
    assert [f.file for f in found["checksum-extra"]] == ["extra.json"]
    assert "checksum-line" in found
    assert any(f.file == "notes.txt" and f.severity == "warning" for f in audit(copy))


@pytest.mark.parametrize("name", ["../outside.json", "/etc/hostname"])
def test_checksums_that_leave_the_folder(copy, name):
    with (copy / SUMS_FILE).open("a") as handle:
        handle.write(f"{'0' * 64}  {name}\n")
    assert set(errors(copy)) == {"path-escape"}


def test_a_link_out_of_the_folder(copy, tmp_path):
    outside = tmp_path / "outside.json"
    shutil.copyfile(copy / "generation_config.json", outside)
    (copy / "generation_config.json").unlink()
    os.symlink(outside, copy / "generation_config.json")
    assert set(errors(copy)) == {"path-escape"}


def test_an_index_that_leaves_the_folder(edit):
    edit.json(INDEX_FILE, lambda index: index["weight_map"].update({"lm_head.weight": "../model.safetensors"}))
    assert "path-escape" in errors(edit.folder)


def test_no_index_with_the_head_in_reach(edit):
    (edit.folder / INDEX_FILE).unlink()
    edit.sums()
    assert set(errors(edit.folder)) == {"head-in-reach"}


def test_an_index_that_lists_the_head(edit):
    edit.json(INDEX_FILE, lambda index: index["weight_map"].update({"scale": "joint_head.safetensors"}))
    assert set(errors(edit.folder)) == {"head-in-reach"}


def test_index_and_shards_disagree(edit):
    name = "lm_head.weight"
    other = next(file for file in sorted(set(edit.index.values())) if file != edit.index[name])
    edit.json(INDEX_FILE, lambda index: index["weight_map"].update({name: other}))
    found = errors(edit.folder)
    assert set(found) == {"index"}
    assert {f.tensor for f in found["index"]} == {name}


def test_a_file_that_transformers_would_read_alone(edit):
    first = shard(edit.folder)
    first.rename(edit.folder / "model.safetensors")
    edit.json(
        INDEX_FILE,
        lambda index: index.update(
            weight_map={n: f if f != first.name else "model.safetensors" for n, f in index["weight_map"].items()}
        ),
    )
    found = errors(edit.folder)
    assert set(found) == {"single-file"}
    assert found["single-file"][0].file == "model.safetensors"


def test_a_shard_that_is_missing(edit):
    shard(edit.folder).unlink()
    edit.sums()
    found = errors(edit.folder)
    assert "missing-file" in found
    assert "missing-tensor" in found or "missing-tables" in found


def test_a_wrong_total_size_is_a_warning(edit):
    edit.json(INDEX_FILE, lambda index: index["metadata"].update(total_size=1))
    assert errors(edit.folder) == {}
    assert any(f.check == "index-size" for f in audit(edit.folder))


def test_leftovers_of_another_save(edit):
    shutil.copyfile(shard(edit.folder), edit.folder / "model-00001-of-00009.safetensors")
    (edit.folder / "pytorch_model.bin").write_bytes(b"old")
    edit.sums()
    found = errors(edit.folder)
    assert {f.file for f in found["leftover"]} == {"model-00001-of-00009.safetensors"}
    assert any(f.check == "leftover" and f.file == "pytorch_model.bin" for f in audit(edit.folder))


def test_lfs_pointers(edit):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"
    name = shard(edit.folder).name
    for file in (name, "tokenizer.json"):
        (edit.folder / file).write_text(pointer)
    edit.sums()
    assert {f.file for f in errors(edit.folder)["lfs-pointer"]} == {name, "tokenizer.json"}


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json", "tokenizer_config.json", "processor_config.json", "joint_head.safetensors",
        "joint_head_config.json", "joint_schema_model.py",
    ],
)  # fmt: skip
def test_missing_side_files(edit, name):
    (edit.folder / name).unlink()
    (edit.folder / "preprocessor_config.json").unlink(missing_ok=True)
    edit.sums()
    found = errors(edit.folder)
    assert {f.file for f in found["missing-file"]} == {name}
    assert set(found) == {"missing-file"}


def test_head_configuration_with_an_unknown_key(edit):
    edit.json("joint_head_config.json", lambda config: config.update(colour="red"))
    assert set(errors(edit.folder)) == {"head-config"}


@pytest.mark.parametrize("published", ["clef-nvfp4"], indirect=True)
def test_tables_without_a_marker_and_a_plugin_that_is_too_old(published):
    path = published / "clef_head" / "joint_head_config.json"
    config = json.loads(path.read_text())
    del config["requires_clef_vllm"]
    path.write_text(json.dumps(config))
    assert set(errors(published)) == {"marker"}
    path.write_text(json.dumps({**config, "requires_clef_vllm": "9.9.9"}))
    (published / "vllm_plugin" / "pyproject.toml").write_text('[project]\nname = "clef-vllm"\nversion = "0.2.0"\n')
    found = errors(published)
    assert set(found) == {"plugin-version"}
    assert "9.9.9" in found["plugin-version"][0].message
    assert "0.2.0" in found["plugin-version"][0].message
