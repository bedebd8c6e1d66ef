"""``clefquant shrink-tables``: the report, the effect on an evaluation set, the way back."""

import json
import shutil

from clefquant.errors import InputError

from ..verify.conftest import records, write_set
from .conftest import run


def test_shrink_and_restore(tiny, tmp_path):
    done = run("--json", "shrink-tables", tiny.path, "--out", tmp_path / "int8")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert [table["table"] for table in value["tables"]] == ["embed_tokens", "lm_head"]
    assert 0 < value["tables"][0]["relative_error"] < 0.02
    assert value["tables"][0]["worst"][0]["token"]
    assert value["effect"] is None
    assert (tmp_path / "int8" / "clef_head" / "tables_int8.safetensors").is_file()
    done = run("shrink-tables", tmp_path / "int8", "--restore")
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "int8" / "clef_head" / "tables_int8.safetensors").exists()


def test_the_effect_on_an_evaluation_set(tiny, tiny_loaded, tmp_path):
    evaluation = write_set(tmp_path / "evaluation", tiny_loaded, records(2))
    done = run("--json", "shrink-tables", tiny.path, "--out", tmp_path / "int8", "--eval", evaluation)
    assert done.exit_code == 0, done.output
    effect = json.loads(done.stdout)["effect"]
    assert set(effect) == {"questions", "kl", "agreement", "max_difference"}
    assert effect["questions"] == 6
    assert 0 < effect["max_difference"] < 0.1
    done = run("shrink-tables", tiny.path, "--out", tmp_path / "again", "--eval", evaluation)
    assert "6 questions: mean KL" in done.output


def test_a_wrong_set_stops_before_anything_is_written(tiny, tmp_path):
    done = run("shrink-tables", tiny.path, "--out", tmp_path / "int8", "--eval", tmp_path / "nothing")
    assert isinstance(done.exception, InputError)
    assert not (tmp_path / "int8").exists()
    done = run("shrink-tables", tiny.path, "--restore", "--eval", tmp_path / "nothing")
    assert "--eval" in str(done.exception)


def test_in_place_by_default(tiny, tmp_path):
    folder = shutil.copytree(tiny.path, tmp_path / "release")
    assert run("shrink-tables", folder).exit_code == 0
    again = run("shrink-tables", folder)
    assert isinstance(again.exception, InputError)
    assert "--restore" in str(again.exception)
