"""Opening releases, and what is said when one cannot be opened."""

import json
import shutil

import pytest

from clefquant.errors import InputError, PrerequisiteError
from clefquant.release.release import open_release


def test_describes_without_loading(tiny):
    assert [unit.name for unit in tiny.units[:2]] == ["layers.0.linear_attn", "layers.0.mlp"]
    assert {unit.kind for unit in tiny.units} == {"mlp", "gdn", "attention"}
    assert "joint_head.safetensors" in {file.name for file in tiny.side_files}
    assert not any(name.startswith("evidence_layers") for name in tiny.tensors)


def test_fingerprint_follows_every_weight(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.path, copy)
    assert open_release(copy).fingerprint == tiny.fingerprint
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert open_release(copy).fingerprint != tiny.fingerprint


@pytest.mark.parametrize("reference", ["./nowhere", "/nowhere/at/all", "nowhere", "a b/c"])
def test_no_such_model(reference):
    with pytest.raises(InputError, match="no model at"):
        open_release(reference)


def test_hub_id_that_cannot_be_reached():
    with pytest.raises(PrerequisiteError, match="the Hub cannot be reached"):
        open_release("acme/clef")


def _without(tiny, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.path, copy)
    (copy / name).unlink()
    return copy


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "has no config.json"),
        ("joint_head.safetensors", "a backbone alone"),
        ("joint_schema_model.py", "has no joint_schema_model.py"),
        ("model.safetensors", "holds no"),
    ],
)
def test_missing_part(tiny, tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        open_release(_without(tiny, tmp_path, name))


def test_other_architecture(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.path, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3_5ForCausalLM"]}))
    with pytest.raises(InputError, match="Qwen3_5ForCausalLM"):
        open_release(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS pointer"),
        (b"short", "not a whole"),
        (b"\xff" * 64, "not a whole"),
    ],
)
def test_weights_that_are_not_weights(tiny, tmp_path, content, message):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.path, copy)
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_release(copy)


def test_cut_weights(tiny, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny.path, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(InputError, match="was cut or overwritten"):
        open_release(copy)
