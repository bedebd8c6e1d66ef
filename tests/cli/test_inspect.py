"""``clefquant inspect``: one screen for everything clefquant writes."""

import json
import subprocess
import sys

import pytest

from clefquant.errors import InputError
from clefquant.recipes.layout import make_layout

from .conftest import run

CYCLE = ("nvfp4", "fp8", "bf16")
ROW = {"name": "all", "questions": 10, "agreement": {"value": 0.99}, "kl": {"value": 0.002}}
REPORT = {
    "kind": "verify report", "schema_version": 1, "verdict": {"headline": "Yes, ship it."},
    "backend": {"engine": "simulated", "device": "cpu"}, "tables": {"all": [ROW], "groups": []},
    "gate": {"limits": [{"row": "all", "limit": "kl <= 0.001", "passed": False}]},
}  # fmt: skip
TABLE = {
    "kind": "sensitivity table", "schema_version": 1, "model": "nano", "units": [1, 2], "formats": ["nvfp4"],
    "record_ids": ["a"], "noise": {"figures": {"kl": {"value": 1e-9}}},
    "entries": [{"unit": "layers.0.mlp", "format": "nvfp4", "figures": {"kl": {"value": 0.01}}}],
}  # fmt: skip
SET = {
    "kind": "calibration set", "schema_version": 1, "name": "mine", "records": 12, "tokens": 345,
    "split": "calibration",
    "sources": [{"name": "spam", "records": 12, "license": "CC BY 4.0"}],
}  # fmt: skip


def test_a_release(tiny):
    done = run("inspect", tiny.path)
    assert done.exit_code == 0
    assert "4 layers, hidden size 64" in done.output
    assert "not quantized" in done.output
    assert len(done.output.splitlines()) <= 40
    assert json.loads(run("--json", "inspect", tiny.path).stdout)["bytes"]["embedding"] > 0


def test_a_layout(tiny, tmp_path):
    units = {unit.name: CYCLE[number % 3] for number, unit in enumerate(tiny.units)}
    make_layout(tiny, units, budget="1MB").write(tmp_path / "layout.json")
    done = run("inspect", tmp_path / "layout.json")
    assert "budget 1MB" in done.output
    assert "attention  4·" in done.output or "attention  48" in done.output


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("report.json", REPORT, ["Yes, ship it.", "gate failed: all: kl <= 0.001", "99.0%"]),
        ("sensitivity.json", TABLE, ["layers.0.mlp", "1.00e-02"]),
        ("set.json", SET, ["12 records, 345 tokens", "CC BY 4.0"]),
    ],
)
def test_results(tmp_path, name, value, words):
    (tmp_path / name).write_text(json.dumps(value))
    done = run("inspect", tmp_path)
    assert done.exit_code == 0, done.output
    assert all(word in done.output for word in words), done.output


def test_what_it_does_not_know(tmp_path):
    for path in (tmp_path, tmp_path / "other.json"):
        (tmp_path / "other.json").write_text("{}")
        done = run("inspect", path)
        assert isinstance(done.exception, InputError)
        assert "none of what inspect reads" in str(done.exception)


def test_neither_torch_nor_transformers_is_imported(tiny):
    code = (
        f"import sys\nsys.argv = ['clefquant', 'inspect', {str(tiny.path)!r}]\n"
        "from clefquant.cli.app import app\n"
        "app(standalone_mode=False)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
