"""Every command of the documentation is one that exists; those of the tutorial and the guides are run."""

import shutil
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from clefquant.cli.app import app
from tests.docs.pages import PAGES, ROOT, blocks, commands

ALL = [(str(page), call) for page in ("README.md", *map(str, PAGES)) for call in commands(page)]
TINY = """
name: {name}
split: {split}
sources:
  - {{name: routing, kind: generator, family: routing, count: {count}}}
  - {{name: invoices, kind: generator, family: invoices, count: {count}}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder where the bundled mixtures are tiny; configs/ is at hand."""
    mixtures = tmp_path / "bundled"
    mixtures.mkdir()
    for name, split, count in (("nano", "calibration", 8), ("nano-eval", "evaluation", 12)):
        (mixtures / f"{name}.yaml").write_text(TINY.format(name=name, split=split, count=count))
    monkeypatch.setattr("clefquant.calibration.mixture.BUNDLED", mixtures)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(page, *, expected=(0,)):
    """Run the calls of a page in order."""
    for call in commands(page):
        result = CliRunner().invoke(app, call)
        assert result.exit_code in expected, (call, result.output, result.exception)


@pytest.mark.parametrize(("page", "call"), ALL, ids=[f"{page}: {' '.join(call)}" for page, call in ALL])
def test_it_parses(page, call):
    """Command and options exist, and there are no more arguments than it takes."""
    root = typer.main.get_command(app)
    given = call[1:] if call[0] in ("--json", "--quiet", "--verbose") else call
    command = root.commands[given[0]]
    context = command.make_context(given[0], [*given[1:]], resilient_parsing=True)
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word for word in given if word.startswith("--")} <= known
    assert not context.args


def test_the_tutorial_and_then_the_budgets_run(folder):
    run("docs/tutorial.md")
    for name in ("release", "report", "comparison"):
        assert (folder / name).is_dir()
    (folder / "runs").mkdir()
    for name in ("calibration", "selection", "sensitivity", "release", "evaluation"):
        shutil.move(name, f"runs/{name}")
    plans = [call for call in commands("docs/guides/choose-a-budget.md") if call[0] == "plan" and "--cost" not in call]
    assert len(plans) == 4
    for call in plans:
        # a KL that so few records can have
        result = CliRunner().invoke(app, ["kl=1e-7" if word == "kl=0.001" else word for word in call])
        assert result.exit_code == 0, (call, result.output, result.exception)
        assert Path(call[-1]).is_file()


def test_quantizing_a_fine_tune_runs_as_written(folder):
    page = "docs/guides/quantize-your-fine-tune.md"
    assert CliRunner().invoke(app, ["nano", "my-clef"]).exit_code == 0
    files = {name: text for name, text in blocks(page, "yaml").items() if name.endswith(".yaml")}
    assert sorted(files) == ["gate.yaml", "my-clef.yaml", "tickets.yaml"]
    for name, text in files.items():
        Path(name).write_text(text)
    Path("tickets-eval.yaml").write_text(files["tickets.yaml"].replace("tickets.csv", "judging.csv"))
    for name, count in (("tickets.csv", 12), ("judging.csv", 8)):
        lines = [f"email,{name} {n}: my invoice is wrong,billing" for n in range(count)]
        Path(name).write_text("\n".join(["channel,text,team", *lines]))
    run(page, expected=(0, 1))  # nano never saw such tickets: the gate may refuse it
    assert Path("runs/my-clef/report/report.html").is_file()


def test_worked_examples_of_extending(tiny, encoded, monkeypatch):
    """The format and the algorithm of the guide, entered where it says, quantize a model."""
    from clefquant.quantize import algorithms
    from clefquant.recipes import formats
    from clefquant.recipes.layout import uniform_layout

    code = blocks("docs/guides/extend.md", "python")
    found = {}
    for block in code.values():
        exec(block, found)
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, found["mxfp8a16"]))
    monkeypatch.setitem(algorithms.ALGORITHMS, "rtn-but-first", found["rtn_but_first"])
    run_it = algorithms.find_algorithm("rtn-but-first")
    results = list(
        run_it(
            tiny, uniform_layout(tiny, "mxfp8a16"), encoded,
            algorithms.SILENT, algorithms.NO_JOURNAL, algorithms.DEFAULT_SCALES,
        )
    )  # fmt: skip
    assert [result.unit.name for result in results] == [unit.name for unit in tiny.units]
    for result in results:
        assert bool(result.linears) == (result.unit.layer != 0)
        for linear in result.linears.values():
            assert linear.scheme.input_activations is None
            assert linear.weight.isfinite().all()


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    assert all(str(page.relative_to("docs")) in listed for page in PAGES)
