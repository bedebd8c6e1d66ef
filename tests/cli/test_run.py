"""``clefquant run``: what it shows, what it prints for programs, what it refuses."""

import io
import json

import pytest
from rich.console import Console

from clefquant.cli.console import Output
from clefquant.cli.run import _summary
from clefquant.cli.stages import StageView
from clefquant.errors import InputError
from clefquant.pipeline.config_file import schema_text

from ..pipeline.conftest import small_run  # noqa: F401  (a fixture)
from .conftest import run


def test_stages_one_by_one(small_run, tmp_path):  # noqa: F811
    config = small_run(scheme="fp8", calibration=None)
    done = run("--json", "run", config, "--until", "release")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert list(value["stages"]) == ["evaluation", "checkpoint", "release"]
    assert value["paths"] == {"release": str(tmp_path / "out" / "release")}
    assert "> checkpoint: not done yet" in done.stderr
    done = run("run", config, "--until", "audit", "--force", "release")
    assert "= checkpoint: done before from the same inputs, kept" in done.stderr
    assert "> release: asked for" in done.stderr
    assert "publish" not in done.stderr
    done = run("run", config)
    assert done.exit_code == 0, done.output
    assert "agreement with BF16" in done.stderr
    assert "clefquant publish" in done.stderr


def test_the_schema_for_editors(tmp_path):
    done = run("run", "--schema")
    assert done.exit_code == 0
    assert done.stdout == schema_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--until", "x"), "no stage x"), (("--force", "x"), "no stage x"), ((), "c.yaml:1: evaluation: Field required")],
)
def test_refusals(tmp_path, arguments, words):
    path = tmp_path / "c.yaml"
    path.write_text("model: nano\nout: x\nscheme: fp8\n")
    done = run("run", path, *arguments)
    assert isinstance(done.exception, InputError)
    assert words in str(done.exception)


def test_a_terminal_shows_every_stage_and_the_bar_of_the_current_one():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    view = StageView(Output(console=console), ["evaluation", "checkpoint", "release"])

    def shown() -> str:
        drawn = Console(file=io.StringIO(), width=100)
        drawn.print(view.render())
        return drawn.file.getvalue()

    with view:
        view.kept("evaluation")
        view.started("checkpoint", "layout changed")
        with view.task("quantizing", 16, "units") as task:
            task.advance(4)
            task.note("layers.3.mlp")
            lines = shown().splitlines()
        assert "evaluation" in lines[0]
        assert "kept" in lines[0]
        assert "layout changed" in lines[1]
        assert lines[2].split() == ["·", "release"]
        assert "quantizing" in lines[3]
        assert "4/16" in lines[3]
        view.finished("checkpoint", 12.34)
        assert "quantizing" not in shown()
        assert "12.3 s" in shown()
    assert "checkpoint" in console.file.getvalue()


def test_a_summary_without_figures():
    """A release whose answers are all NaN has no KL; what was found is shown all the same."""
    console = Console(file=io.StringIO(), width=100)
    found = dict.fromkeys(("agreement", "kl", "accuracy", "accuracy_reference"))
    _summary(Output(console=console), {**found, "headline": "No.", "questions": 3, "reference_bytes": 4, "bytes": 2})
    assert "KL(BF16 ‖ release)   –" in console.file.getvalue()
    assert "(50%)" in console.file.getvalue()


def test_quiet_shows_nothing(capsys):
    view = StageView(Output(quiet=True), ["a"])
    with view, view.task("work", 1) as task:
        view.started("a", "not done yet")
        task.advance()
        view.finished("a", 1.0)
    assert capsys.readouterr().err == ""
