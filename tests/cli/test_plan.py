import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from clefquant.cli.console import Output
from clefquant.cli.plan import plan
from clefquant.errors import InputError
from clefquant.sensitivity.cost import Cost
from clefquant.sensitivity.table import Entry, Figure, SensitivityTable, UnitInfo


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    names = ["layers.0.linear_attn", "layers.0.mlp", "layers.1.self_attn", "layers.1.mlp"]
    units = [
        UnitInfo(name=n, layer=i // 2, kind="mlp", weights=1000, bytes={"bf16": 2000, "fp8": 1020, "nvfp4": 570})
        for i, n in enumerate(names)
    ]
    entries = [
        Entry(unit=n, format=f, figures={"kl": Figure(value=v * (i + 1), error=None, questions=2)}, record_kl=[v, v])
        for i, n in enumerate(names)
        for f, v in (("fp8", 1e-5), ("nvfp4", 1e-3))
    ]
    table = SensitivityTable(
        model="nano", formats=["fp8", "nvfp4"], units=units, other_bytes=5000, head_bytes=500, record_ids=["a", "b"],
        questions=[1, 1], noise=Entry(unit="", format="noise"), entries=entries,
    )  # fmt: skip
    table.write(tmp_path / "sensitivity.json")
    return tmp_path / "sensitivity.json"


def run(*arguments: str):
    app = typer.Typer()

    @app.callback()
    def _options(context: typer.Context) -> None:
        context.obj = Output(as_json=True, quiet=True)

    app.command("plan")(plan)
    return CliRunner().invoke(app, ["plan", *arguments])


def test_plan_writes_a_layout_and_prints_json(table_file: Path, tmp_path: Path):
    out = tmp_path / "layout.json"
    result = run("--table", str(table_file), "--budget", "6bits", "--out", str(out), "--pin", "layers.1.mlp=fp8")
    assert result.exit_code == 0
    printed, written = json.loads(result.stdout), json.loads(out.read_text())
    assert printed["paths"] == {"layout": str(out)}
    assert written["units"] == printed["units"]
    assert written["budget"] == "6bits"
    assert written["bits_per_weight"] <= 6
    assert written["units"]["layers.1.mlp"] == "fp8"
    # least total damage: the two units whose nvfp4 costs least
    assert [name for name, fmt in written["units"].items() if fmt == "nvfp4"][:2] == [
        "layers.0.linear_attn",
        "layers.0.mlp",
    ]


def test_a_time_budget_is_counted_by_the_table_of_times(table_file: Path, tmp_path: Path):
    units = [unit["name"] for unit in json.loads(table_file.read_text())["units"]]
    times = {name: {"bf16": 2.0, "fp8": 1.0, "nvfp4": 3.0} for name in units}
    cost = Cost(origin={}, model="nano", device="a GPU", tokens=512, kernels={}, units=times)
    arguments = ("--table", str(table_file), "--budget", "time=0.75x", "--out", str(tmp_path / "layout.json"))
    missing = run(*arguments)
    assert isinstance(missing.exception, InputError)
    assert "--measure-cost" in str(missing.exception)
    cost.write(tmp_path / "cost.json")  # beside the table
    found = run(*arguments)
    assert json.loads(found.stdout)["milliseconds"] <= 6
    assert sorted(json.loads(found.stdout)["units"].values()) == ["bf16", "bf16", "fp8", "fp8"]
    cost.write(tmp_path / "elsewhere.json")
    assert run(*arguments, "--cost", str(tmp_path / "elsewhere.json")).stdout == found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "1bits"), r"less than the smallest.*4\.56bits to 16bits"),
        (("--budget", "6bits", "--pin", "layers.0.mlp"), r"not UNIT=FORMAT"),
        (("--budget", "6bits", "--pin", "layers.9.mlp=fp8"), "no such unit"),
        (("--budget", "6bits", "--forbid", "nothing"), "unknown format 'nothing'"),
        (("--budget", "six"), "not understood"),
    ],
)
def test_bad_requests_say_what_is_allowed(table_file: Path, tmp_path: Path, arguments, message):
    result = run("--table", str(table_file), "--out", str(tmp_path / "l.json"), *arguments)
    assert isinstance(result.exception, InputError)
    with pytest.raises(InputError, match=message):
        raise result.exception
    assert not (tmp_path / "l.json").exists()


def test_other_files_are_refused(tmp_path: Path, table_file: Path):
    for text, message in (
        ("{}", "schema_version"),
        ("[1]", "is a list"),
        ('{"schema_version": 99}', "Update clefquant"),
    ):
        (tmp_path / "x.json").write_text(text)
        result = run("--table", str(tmp_path / "x.json"), "--budget", "6bits")
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)
    damaged = json.loads(table_file.read_text())
    del damaged["units"]
    (tmp_path / "x.json").write_text(json.dumps(damaged))
    result = run("--table", str(tmp_path / "x.json"), "--budget", "6bits")
    assert "run the sweep again" in str(result.exception)
