"""``clefquant audit``: findings for people and programs, the exit code, the repair."""

import json

import pytest

from clefquant.errors import CheckFailed, InputError
from clefquant.release.shards import write_index

from .conftest import run


@pytest.fixture
def folder(tiny, tmp_path):
    """The plain BF16 release with an index: clean."""
    import shutil

    copy = shutil.copytree(tiny.path, tmp_path / "release")
    write_index(copy, {name: info.file.name for name, info in tiny.tensors.items()}, tiny.backbone_bytes)
    return copy


def test_a_clean_folder_exits_zero(folder):
    done = run("audit", folder, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["counts"]["error"] == 0


def test_errors_are_named_and_exit_one(folder):
    (folder / "tokenizer.json").unlink()
    done = run("audit", folder)
    assert isinstance(done.exception, CheckFailed)
    assert done.exception.exit_code == 1
    assert "tokenizer.json is missing" in done.output
    done = run("audit", folder, "--json")
    findings = json.loads(done.stdout)["findings"]
    assert [f["file"] for f in findings if f["severity"] == "error"] == ["tokenizer.json"]


def test_ranks_are_checked(folder):
    done = run("audit", folder, "--tp", "3")
    assert isinstance(done.exception, CheckFailed)
    assert "3 ranks do not divide" in done.output


def test_repair_needs_a_place_and_mends(folder, tmp_path):
    assert isinstance(run("audit", folder, "--repair").exception, InputError)
    (folder / "model.safetensors.index.json").unlink()
    done = run("--json", "audit", folder, "--repair", "--out", tmp_path / "mended")
    assert done.exit_code == 0, done.output
    assert "an index was written" in json.loads(done.stdout)["actions"]
    assert run("audit", tmp_path / "mended").exit_code == 0


def test_what_cannot_be_repaired_exits_one(folder, tmp_path):
    (folder / "tokenizer.json").unlink()
    done = run("audit", folder, "--repair", "--out", tmp_path / "mended")
    assert isinstance(done.exception, CheckFailed)
    assert (tmp_path / "mended").is_dir()
