"""The guide that extends clefquant: its edits are made in a copy of the package, and its commands run there."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, Block, blocks, commands

PAGE = Path("docs/guides/extend.md")
#: In one process, because each would import torch again.
RUN_ALL = """
import json, sys
import clefquant
from clefquant.cli.app import app
from typer.testing import CliRunner

assert clefquant.__file__.startswith(sys.argv[1])
for call in json.loads(sys.argv[2]):
    done = CliRunner().invoke(app, call)
    if done.exit_code:
        sys.exit(f"{call}: {done.output} {done.exception}")
"""


def edit(root: Path, block: Block) -> None:
    """Apply a diff: its old lines stand in the file exactly once."""
    path, lines = root / block.title, block.text.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    text = path.read_text()
    assert text.count(old) == 1, f"{block.title} has {text.count(old)} times\n{old}"
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def extended(tmp_path_factory) -> Path:
    """The folder in which the page's commands ran, on a copy of the package with the page's edits."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "clefquant", root / "clefquant", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "plugins").symlink_to(ROOT / "plugins")
    for block in blocks(PAGE, "diff", "python", "yaml"):
        if block.language == "diff":
            edit(root, block)
        else:
            (root / block.title).write_text(block.text)
    calls = [shlex.split(command)[1:] for command in commands(PAGE)]
    subprocess.run(
        [sys.executable, "-c", RUN_ALL, str(root), json.dumps(calls)],
        check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    return root / "runs"


def read(path: Path):
    return json.loads(path.read_text())


def test_every_command_of_the_page_is_one_of_ours():
    assert {command.split()[0] for command in commands(PAGE)} == {"clefquant"}


def test_the_format_stores_its_weights(extended):
    (group,) = read(extended / "mxfp8a16" / "config.json")["quantization_config"]["config_groups"].values()
    assert (group["format"], group["input_activations"]) == ("mxfp8-quantized", None)


def test_the_source_gives_labelled_records(extended):
    lines = [json.loads(line) for line in (extended / "parcels" / "records.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert read(extended / "judging" / "set.json")["split"] == "evaluation"


def test_the_algorithm_made_the_checkpoint(extended):
    assert read(extended / "sequential" / "checkpoint.json")["algorithm"] == "sequential"


def test_the_metric_is_in_the_report_and_in_its_gate(extended):
    report = read(extended / "report" / "report.json")
    figure = report["tables"]["all"][0]["tv_confident"]
    assert 0 <= figure["low"] <= figure["value"] <= figure["high"] <= 1
    assert report["gate"]["limits"][0]["measure"] == "tv_confident"
