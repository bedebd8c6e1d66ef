"""The command on a tiny release: sets on disk in, artefacts out, resumed, refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from clefquant.calibration.stored import RECORDS_FILE, StoredRecord, to_line
from clefquant.cli.console import Output
from clefquant.cli.sensitivity import sensitivity
from clefquant.errors import InputError
from clefquant.release.artefact import sha256_file, write_json, write_text

PICTURES = {
    "sensitivity_heat_map.png",
    "sensitivity_damage_per_byte.png",
    "sensitivity_rank_stability.png",
    "frontier.png",
}
TABLES = {"sensitivity.sqlite", "sensitivity.json", "sensitivity.csv", "input_statistics.json"}
WRITTEN = PICTURES | TABLES | {"frontier.json", "layout.json"}


def write_set(folder: Path, release, records: list[StoredRecord]) -> Path:
    """A set as ``calibrate`` writes it, as far as it is read here."""
    write_text(folder / RECORDS_FILE, "".join(to_line(record) + "\n" for record in records))
    header = {
        "kind": "calibration set", "schema_version": 1, "split": "evaluation", "records": len(records),
        "tokens": sum(record.tokens for record in records), "sources": [], "max_length": 16384,
        "records_sha256": sha256_file(folder / RECORDS_FILE),
        "tokenizer_sha256": sha256_file(release.path / "tokenizer.json"),
        "code_sha256": sha256_file(release.path / "joint_schema_model.py"),
    }  # fmt: skip
    write_json(folder / "set.json", header)
    return folder


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory, tiny, tiny_loaded) -> tuple[Path, Path]:
    torch.set_num_threads(1)
    folder, tokenizer = tmp_path_factory.mktemp("sets"), tiny_loaded.processor.tokenizer
    records = []
    for number in range(7):
        record = {
            "state": f"parcel {number}",
            "questions": {
                "late": {"type": "noul", "instructions": "late?"},
                "level": {"type": "score", "instructions": "level", "criteria": ["low", "high"]},
            },
        }
        encoded = replace(tiny_loaded.code.encode_record(tokenizer, record), record_id=f"r{number}")
        records.append(StoredRecord(f"r{number}", f"g{number}", "made", record, {}, encoded))
    return write_set(folder / "calibration", tiny, records[:2]), write_set(folder / "evaluation", tiny, records[2:])


def run(release, sets: tuple[Path, Path], out: Path, *arguments: str):
    fixed = ["--model", str(release.path), "--calibration", str(sets[0]), "--eval", str(sets[1]), "--out", str(out)]
    return run_alone(*fixed, *arguments)


def run_alone(*arguments: str):
    app = typer.Typer()

    @app.callback()
    def _options(context: typer.Context) -> None:
        context.obj = Output(as_json=True, quiet=True)

    app.command("sensitivity")(sensitivity)
    return CliRunner().invoke(app, ["sensitivity", *arguments])


def test_sweep_selection_and_artefacts(tiny, sets, tmp_path: Path):
    arguments = ("--budget", "8bits", "--formats", "fp8,nvfp4", "--candidates", "3")
    result = run(tiny, sets, tmp_path, *arguments)
    assert result.exception is None, result.exception
    printed = json.loads(result.stdout.splitlines()[-1])
    assert {file.name for file in tmp_path.iterdir()} == WRITTEN
    assert {Path(path).name for path in printed["paths"].values()} == WRITTEN - {"input_statistics.json"}
    layout = json.loads((tmp_path / "layout.json").read_text())
    assert layout["units"] == printed["units"]
    assert layout["bits_per_weight"] <= 8
    assert layout["measured"]["kl"]["value"] >= 0
    before = {name: (tmp_path / name).read_bytes() for name in ("sensitivity.json", "frontier.json", "layout.json")}
    again = run(tiny, sets, tmp_path, *arguments)
    assert again.exception is None
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "2bits"), "less than the smallest"),
        (("--budget", "99GB"), "more than the largest"),
        (("--budget", "8bits", "--pin", "layers.77.mlp=fp8"), "no such unit"),
        (("--budget", "8bits", "--formats", "fp8,int3"), "unknown format 'int3'"),
        (("--budget", "time=0.0001x", "--formats", "fp8"), "less than the smallest layout needs; possible: time="),
        (("--budget", "8bits", "--cache-bytes", "much"), "'much' is not a size"),
    ],
)
def test_what_cannot_succeed_is_refused_before_any_work(tiny, sets, tmp_path: Path, arguments, message):
    result = run(tiny, sets, tmp_path / "out", *arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_costs_alone_then_a_time_budget(tiny, sets, tmp_path: Path):
    model = ("--model", str(tiny.path), "--formats", "fp8,int8")
    alone = run_alone(*model, "--out", str(tmp_path), "--measure-cost")
    assert alone.exception is None, alone.exception
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert json.loads(alone.stdout.splitlines()[-1])["kernels"] == cost["kernels"]
    assert {file.name for file in tmp_path.iterdir()} == {"cost.json"}
    # times as they would be on a GPU: a time budget below bf16's is then possible
    cost["units"] = {name: {"bf16": 1.0, "fp8": 0.5, "int8": 0.75} for name in cost["units"]}
    (tmp_path / "cost.json").write_text(json.dumps(cost))
    result = run(tiny, sets, tmp_path, "--budget", "time=0.6x", "--formats", "fp8,int8", "--candidates", "2")
    assert result.exception is None, result.exception
    layout = json.loads((tmp_path / "layout.json").read_text())
    assert layout["budget"] == "time=0.6x"
    assert sum(cost["units"][name][fmt] for name, fmt in layout["units"].items()) <= 0.6 * len(layout["units"])


def test_a_sweep_without_sets_is_refused(tiny, tmp_path: Path):
    result = run_alone("--model", str(tiny.path), "--out", str(tmp_path / "out"))
    assert isinstance(result.exception, InputError)
    assert "needs --calibration, --eval and --budget" in str(result.exception)


def test_overlapping_sets_are_refused(tiny, sets, tmp_path: Path):
    result = run(tiny, (sets[1], sets[1]), tmp_path / "out", "--budget", "8bits")
    assert isinstance(result.exception, InputError)
    assert "5 evaluation records are also in the calibration set" in str(result.exception)
