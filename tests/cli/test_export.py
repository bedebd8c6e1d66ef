"""``clefquant export``, ``audit``, ``shrink-tables`` and ``inspect`` share one walk: see also their own files."""

import json

import pytest

from clefquant.errors import InputError
from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.recipes.layout import uniform_layout

from .conftest import run


@pytest.fixture(scope="module")
def checkpoint(tiny, tmp_path_factory):
    layout = uniform_layout(tiny, "fp8")
    return write_checkpoint(tiny, layout, to_nearest(tiny, layout, {}), tmp_path_factory.mktemp("cli") / "fp8")


def test_a_checkpoint_becomes_a_release(checkpoint, tmp_path):
    out = tmp_path / "release"
    done = run("--json", "export", checkpoint, "--out", out, "--max-shard-size", "100KB", "--repo", "acme/tiny")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["paths"] == {"release": str(out)}
    assert len(value["release_sha256sums"]) == 64
    assert (out / "README.md").is_file()
    assert len(list(out.glob("model-*.safetensors"))) > 1


def test_wrong_options_are_told(checkpoint, tmp_path):
    done = run("export", checkpoint, "--out", tmp_path / "r", "--max-shard-size", "huge")
    assert isinstance(done.exception, InputError)
    assert "for example 5GB" in str(done.exception)
    probe = tmp_path / "probe.json"
    probe.write_text("{}")
    done = run("export", checkpoint, "--out", tmp_path / "r", "--probe", probe)
    assert "it needs schema_version" in str(done.exception)
    assert not (tmp_path / "r").exists()
