"""Gate files: what they say, what they refuse, how they judge."""

from pathlib import Path

import pytest

from clefquant.errors import InputError
from clefquant.verify.gates import GateFile, judge, parse_limit, read_gate
from clefquant.verify.tables import COUNTS
from clefquant.verify.totals import DIFFERENCES, RATIOS


def a_row(name, **figures):
    base = dict.fromkeys(COUNTS, 0) | dict.fromkeys([*RATIOS, *DIFFERENCES, "kl_p99"], None)
    return {"name": name, "flips": 0, **base, **figures}


def figure(value, low, high):
    return {"value": value, "low": low, "high": high}


TABLES = {
    "all": [a_row("All", agreement=figure(0.986, 0.98, 0.99), kl=figure(0.002, 0.001, 0.004), confident_flips=1)],
    "groups": [
        a_row("a", agreement=figure(0.99, 0.98, 1.0)),
        a_row("b", agreement=figure(0.97, 0.96, 0.99)),
    ],
}


def test_limits_on_all_and_on_groups():
    gate = GateFile(
        limits=["agreement >= 98.5 %", "kl <= 0.003", "confident_flips == 0"],
        groups={"*": ["agreement >= 0.96"], "b": ["agreement > 97%"]},
    )
    found = [(one["row"], one["limit"], one["passed"]) for one in judge(gate, TABLES)]
    assert found == [
        ("All", "agreement >= 98.5 %", True),
        ("All", "kl <= 0.003", True),
        ("All", "confident_flips == 0", False),
        ("a", "agreement >= 0.96", True),
        ("b", "agreement >= 0.96", True),
        ("b", "agreement > 97%", False),
    ]


def test_bounds_are_the_unfavourable_end():
    gate = GateFile(judge="bound", limits=["agreement >= 98.5 %", "kl <= 0.003", "agreement >= 98 %"])
    assert [(one["found"], one["passed"]) for one in judge(gate, TABLES)] == [
        (0.98, False),
        (0.004, False),
        (0.98, True),
    ]


def test_nan_fails_a_mean_that_would_hide_it():
    tables = {"all": [a_row("All", kl=figure(0.0, 0.0, 0.0), agreement=figure(0.99, 0.98, 1.0), nan=3)], "groups": []}
    results = judge(GateFile(limits=["kl <= 0.003", "agreement >= 0.9", "nan == 0"]), tables)
    assert [(one["passed"], one["why"]) for one in results] == [(False, "3 questions are NaN"), (True, ""), (False, "")]


def test_an_undefined_figure_fails():
    (found,) = judge(GateFile(limits=["accuracy >= 80 %"]), TABLES)
    assert not found["passed"]
    assert found["why"] == "not defined on these questions"


@pytest.mark.parametrize(
    ("text", "message"),
    [("agreement is high", "is not MEASURE"), ("speed >= 3", "names no measure"), ("kl <= ", "is not MEASURE")],
)
def test_unreadable_limits(text, message):
    with pytest.raises(InputError, match=message):
        parse_limit(text)


def test_signs_and_numbers():
    assert parse_limit("accuracy_change >= -0.5 %").limit == pytest.approx(-0.005)
    assert parse_limit("kl<=3e-3").limit == 0.003


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("judge: best", "is not a gate file"),
        ("limit: [a]", "is not a gate file"),
        ("{}", "sets no limit"),
        ("[", "is not a gate"),
    ],
)
def test_unreadable_files(tmp_path, text, message):
    (tmp_path / "gate.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_gate(tmp_path / "gate.yaml")


def test_unknown_group():
    with pytest.raises(InputError, match="group 'c'; the evaluation set has a, b"):
        judge(GateFile(groups={"c": ["kl <= 1"]}), TABLES)


@pytest.mark.parametrize("path", sorted(Path("configs/gates").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_gates_can_be_read(path):
    assert read_gate(path).limits
