"""``clefquant shrink-tables``: the report, the way back."""

import json
import shutil

from clefquant.errors import InputError

from .conftest import run


def test_shrink_and_restore(tiny, tmp_path):
    done = run("--json", "shrink-tables", tiny.path, "--out", tmp_path / "int8")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert [table["table"] for table in value["tables"]] == ["embed_tokens", "lm_head"]
    assert 0 < value["tables"][0]["relative_error"] < 0.02
    assert value["tables"][0]["worst"][0]["token"]
    assert (tmp_path / "int8" / "clef_head" / "tables_int8.safetensors").is_file()
    done = run("shrink-tables", tmp_path / "int8", "--restore")
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "int8" / "clef_head" / "tables_int8.safetensors").exists()


def test_in_place_by_default(tiny, tmp_path):
    folder = shutil.copytree(tiny.path, tmp_path / "release")
    assert run("shrink-tables", folder).exit_code == 0
    again = run("shrink-tables", folder)
    assert isinstance(again.exception, InputError)
    assert "--restore" in str(again.exception)
