"""Every command of the documentation is run, page by page, as it is written there."""

import shlex
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from clefquant.cli.app import app
from clefquant.errors import CheckFailed

from .conftest import PAGES, README, ROOT, blocks, commands, stand_in, write_mixture

EXTEND, FINE_TUNE = Path("docs/guides/extend.md"), Path("docs/guides/quantize-your-fine-tune.md")
AUDIT = Path("docs/guides/audit-someone-elses-checkpoint.md")
#: README's lines that set a machine up; CI and people run them.
SETS_UP = ("scripts/demo", "scripts/test", "scripts/setup '&&' source .venv/bin/activate")
#: Programs of the serving environment; test_serving.py reads their flags.
SERVING = ("pip", "clef-systemone", "curl")
#: Needs a running server; tests/verify/test_http.py and the plugin's test_server_http.py do what it does.
ASKS_A_SERVER = (
    "clefquant verify RELEASE --against nano --eval runs/evaluation --backend http://127.0.0.1:8000 "
    "--out runs/served-report"
)
_CALIBRATION = "clefquant calibrate --model nano --mixture nano --out runs/calibration"
_SELECTION = "clefquant calibrate --model nano --mixture nano --seed 1 --out runs/selection"
_EVALUATION = "clefquant calibrate --model nano --mixture nano-eval --out runs/evaluation"
_CHECKPOINT = "clefquant quantize --model nano --scheme fp8 --out runs/checkpoint"
#: What a reader of a page has already.
BEFORE = {
    "choose-a-budget.md": (_CALIBRATION, _SELECTION),
    "read-a-report.md": (_EVALUATION, _CHECKPOINT, "clefquant export runs/checkpoint --out runs/release"),
    "publish.md": (_CALIBRATION, _EVALUATION, _CHECKPOINT),
    FINE_TUNE.name: ("clefquant nano my-clef",),
    AUDIT.name: (
        _CALIBRATION, _EVALUATION,
        "clefquant quantize --model nano --scheme nvfp4 --calibration runs/calibration --out c",
        "clefquant export c --out downloaded",
    ),
}  # fmt: skip
#: Commands that shall find a fault.
FINDS = ("clefquant audit downloaded", "clefquant audit downloaded --tp 2 --json")
#: Folders of finished runs by configuration. A page that shows one again gets its folder, and the run keeps its stages.
FINISHED: dict[str, Path] = {}


def run(command: str) -> None:
    """Run a `clefquant` command in this process; anything else is an error."""
    program, *arguments = shlex.split(stand_in(command))
    assert program == "clefquant", f"nothing runs {command}"
    config = Path(arguments[-1]) if "run" in arguments and arguments[-1].startswith("configs/") else None
    if config and config.stem in FINISHED:
        shutil.copytree(FINISHED[config.stem], Path("runs", config.stem))
    done = CliRunner().invoke(app, arguments)
    if command in FINDS:
        assert isinstance(done.exception, CheckFailed), (command, done.output)
    else:
        assert done.exit_code == 0, (command, done.output, done.exception)
    if config:
        FINISHED[config.stem] = Path("runs", config.stem).resolve()


def runs_here(command: str) -> bool:
    """Whether a command is one of the toolkit's that needs no server."""
    return command.split()[0] not in SERVING and command not in (*SETS_UP, ASKS_A_SERVER)


PAGES_THAT_RUN = [page for page in (README, *PAGES) if page != EXTEND and any(map(runs_here, commands(page)))]


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, folder):
    for block in blocks(page, "yaml"):
        if block.title:
            Path(block.title).write_text(stand_in(block.text))
    for command in BEFORE.get(page.name, ()):
        run(command)
    if page == FINE_TUNE:
        tickets()
    if page == AUDIT:
        damage(Path("downloaded"))
    for command in filter(runs_here, commands(page)):
        run(command)


def tickets() -> None:
    """The rows that the page's mixture maps, and the second mixture it asks the reader to write."""
    rows = [f"email,invoice {number} is wrong,billing" for number in range(8)]
    Path("tickets.csv").write_text("\n".join(["channel,text,team", *rows, ""]))
    write_mixture(Path(), "tickets-eval", "evaluation")


def damage(release: Path) -> None:
    """A checkpoint as somebody without this tool would leave it: no index, unshared scales, none of our files."""
    weights = load_file(release / "model.safetensors")
    for name in weights:
        if name.endswith("in_proj_z.weight_global_scale"):
            weights[name] = weights[name] * 0.6
    save_file(weights, release / "model.safetensors", metadata={"format": "pt"})
    for name in ("SHA256SUMS", "model.safetensors.index.json", "layout.json", "checkpoint.json"):
        (release / name).unlink(missing_ok=True)


def test_the_python_page_runs(folder, capsys):
    (block,) = blocks(Path("docs/reference/python.md"), "python")
    exec(compile(block.text, "python.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()[-1].split()) == 2


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    assert all(str(page.relative_to("docs")) in listed for page in PAGES)
