"""A folder in the shape of the 27B release is audited and described from its headers."""

import json

import pytest

from clefquant.export import audit as module
from clefquant.export.audit import audit
from clefquant.export.audit.shapes import EMBEDDING
from clefquant.export.describe_model import describe_model
from clefquant.recipes.formats import find_format
from clefquant.release.release import INDEX_FILE

from ..shapes import SIZES, large_folder

BF16_BYTES = 55_000_000_000


@pytest.fixture
def large(tiny, make_checkpoint, tmp_path, monkeypatch):
    """Writes a folder in one format (None: BF16); its weights are not read."""
    monkeypatch.setattr(module, "check_contents", lambda folder, task: ({}, []))

    def make(name: str | None):
        source, fmt = (make_checkpoint(name), find_format(name)) if name else (tiny.path, None)
        return large_folder(source, tmp_path / str(name), SIZES["Cloudflare/clef"], fmt)

    return make


@pytest.mark.parametrize("name", [None, "fp8", "nvfp4", "mxfp4"])
def test_it_is_clean(large, name):
    folder = large(name)
    assert [found.message for found in audit(folder, ranks=4) if found.severity == "error"] == []
    lines, values = describe_model(folder)
    assert "64 layers, hidden size 5120" in lines[0]
    assert values["bytes"]["embedding"] == values["bytes"]["lm_head"] == 2 * 248320 * 5120
    assert set(values["units"].values()) == {name or "bf16"}
    total = sum(values["bytes"].values())
    assert total > 0.9 * BF16_BYTES if name is None else total < 0.65 * BF16_BYTES


def test_ranks_that_do_not_divide(large):
    found = [f for f in audit(large("nvfp4"), ranks=48) if f.severity == "error"]
    assert {f.check for f in found} == {"tensor-parallel"}


def test_a_shard_with_a_table_is_missing(large):
    folder = large("fp8")
    index = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
    (folder / index[EMBEDDING]).unlink()
    found = {f.check for f in audit(folder) if f.severity == "error"}
    assert {"missing-file", "missing-tables"} <= found
