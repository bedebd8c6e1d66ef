"""``clefquant calibrate``: what it prints, its exit codes, and never a traceback for what the input holds."""

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from clefquant.cli.calibrate import calibrate
from clefquant.cli.console import Output
from clefquant.errors import CheckFailed, InputError
from clefquant.release.release import Release

QUESTIONS = {"late": {"type": "noul", "instructions": "Is it late?"}}


def run(tmp_path: Path, tiny: Release, *arguments: str, as_json: bool = False) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("calibrate")(calibrate)
    mixture = tmp_path / "m.yaml"
    if not mixture.exists():
        mixture.write_text("sources: [{name: r, kind: file, path: r.jsonl, order: first}]")
    command = ["--model", str(tiny.path), "--mixture", str(mixture), *arguments]
    return CliRunner().invoke(app, command, obj=Output(as_json=as_json))


def write(tmp_path: Path, *lines: object) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (tmp_path / "r.jsonl").write_text("\n".join(texts) + "\n")


def test_report_and_result(tmp_path: Path, tiny: Release, folder: Path) -> None:
    write(tmp_path, {"state": "a", "questions": QUESTIONS}, "{broken", {"state": "b", "questions": QUESTIONS})
    result = run(tmp_path, tiny, "--out", str(folder), as_json=True)
    assert result.exit_code == 0, result.exception
    value = json.loads(result.stdout)
    assert (value["records"], value["rejected"], value["questions"]) == (2, 1, {"noul": 2})
    assert value["paths"] == {"set": str(folder)}
    assert value["sources"][0]["rejections"][0]["place"] == "r.jsonl line 2"
    assert json.loads((folder / "report.json").read_text())["records"] == 2
    assert "rejected, first r.jsonl line 2" in " ".join(result.stderr.split())
    assert "2 records" in result.stderr
    assert f"clefquant inspect {folder}" in result.stderr


def test_strict_is_an_input_error_without_output(tmp_path: Path, tiny: Release, folder: Path) -> None:
    write(tmp_path, {"state": "a", "questions": QUESTIONS}, '{"state": 1,}')
    result = run(tmp_path, tiny, "--out", str(folder), "--strict")
    assert isinstance(result.exception, InputError)
    assert "r.jsonl line 2" in str(result.exception)
    assert not folder.exists()


def test_overlap_fails_the_check(tmp_path: Path, tiny: Release, folder: Path) -> None:
    write(tmp_path, {"state": "a", "questions": QUESTIONS})
    evaluation = str(tmp_path / "eval")
    assert run(tmp_path, tiny, "--out", evaluation, "--split", "eval").exit_code == 0
    assert json.loads((tmp_path / "eval" / "set.json").read_text())["split"] == "evaluation"
    result = run(tmp_path, tiny, "--out", str(folder), "--against", evaluation)
    assert isinstance(result.exception, CheckFailed)
    assert result.exception.exit_code == 1


def test_bundled_mixture_by_name(tmp_path: Path, tiny: Release, folder: Path) -> None:
    result = run(tmp_path, tiny, "--out", str(folder), "--mixture", "long", as_json=True)
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["records"] == 128


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--mixture", "none"], "there is no mixture none"),
        (["--model", "./none"], "no model at ./none"),
        (["--against", "nowhere"], "does not exist"),
    ],
)
def test_wrong_input(tmp_path: Path, tiny: Release, folder: Path, arguments: list[str], reason: str) -> None:
    write(tmp_path, {"state": "a", "questions": QUESTIONS})
    result = run(tmp_path, tiny, "--out", str(folder), *arguments)
    assert isinstance(result.exception, InputError)
    assert reason in str(result.exception)


def test_no_workers_is_wrong_usage(tmp_path: Path, tiny: Release, folder: Path) -> None:
    result = run(tmp_path, tiny, "--out", str(folder), "--workers", "0")
    assert result.exit_code == 2
