import pytest

from clefquant.errors import InputError
from clefquant.recipes.layout import make_layout
from clefquant.sensitivity.budget import parse_budget, show_bytes
from clefquant.sensitivity.plan import Constraints, plan
from clefquant.sensitivity.table import Entry


@pytest.fixture(scope="module")
def table(swept):
    return swept[1]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("10.3GB", "bytes", 10.3e9), ("10.3 gb", "bytes", 10.3e9), ("2GiB", "bytes", 2 << 30), ("500MB", "bytes", 5e8),
        ("7e9B", "bytes", 7e9), ("5.2bits", "bits", 5.2), ("0.6x", "fraction", 0.6), (".5x", "fraction", 0.5),
        ("kl=0.002", "kl", 0.002), ("KL = 2e-3", "kl", 0.002), ("time=0.7x", "time", 0.7),
        ("Time = 1.5 ms", "milliseconds", 1.5),
    ],
)  # fmt: skip
def test_budgets_are_read(text, kind, value):
    budget = parse_budget(text)
    assert (budget.kind, budget.value) == (kind, pytest.approx(value))


@pytest.mark.parametrize(
    "text", ["", "10", "10 gigs", "-1GB", "kl=", "5.2 bit", "0.6", "nanGB", "1e9", "time=1", "0.7ms"]
)
def test_other_budgets_say_what_is_allowed(text):
    with pytest.raises(InputError, match=r"10\.3GB, 5\.2bits, 0\.6x .* kl=0\.002, time=0\.7x .* time=1\.5ms"):
        parse_budget(text)


def test_sizes_for_people():
    assert [show_bytes(value) for value in (12, 1.5e3, 2.25e6, 10.3e9)] == ["12B", "1.5KB", "2.25MB", "10.3GB"]


def test_bytes_of_a_plan_are_those_of_make_layout(tiny, table):
    found = plan(table, "0.8x")
    layout = make_layout(tiny, found.units, budget="0.8x")
    assert table.layout(found.units, "0.8x") == layout
    assert found.total_bytes == layout.bytes + (tiny.path / "joint_head.safetensors").stat().st_size
    bf16 = table.total_bytes({unit.name: "bf16" for unit in table.units})
    assert bf16 == tiny.backbone_bytes + (tiny.path / "joint_head.safetensors").stat().st_size
    assert found.total_bytes <= 0.8 * bf16


def test_every_form_of_budget_is_kept(table):
    assert table.layout(plan(table, "6bits").units, None).bits_per_weight <= 6
    size = plan(table, "0.8x").total_bytes
    assert plan(table, f"{size}B").total_bytes <= size
    ceiling = plan(table, f"{size}B").predicted_kl
    by_kl = plan(table, f"kl={ceiling * 1.0000001:.12g}")
    assert by_kl.predicted_kl <= ceiling * 1.0000001
    assert by_kl.total_bytes <= size


def test_prediction_is_the_sum_of_the_units_with_an_error_over_records(table):
    found = plan(table, "5bits")
    entries = [table.entry(name, fmt) for name, fmt in found.units.items() if fmt != "bf16"]
    assert found.predicted_kl == pytest.approx(sum(entry.kl for entry in entries if entry))
    assert found.predicted_error is not None
    assert found.predicted_error > 0


@pytest.mark.parametrize("form", ["{}B", "{}bits", "{}x"])
def test_budgets_out_of_reach_name_both_ends(table, form):
    for value in (0.001, 10**12):
        with pytest.raises(InputError, match=r"(less than the smallest|more than the largest).*possible: \S+ to \S+"):
            plan(table, form.format(value))
    with pytest.raises(InputError, match="more than the largest"):
        plan(table, "kl=1000")


def test_the_named_ends_are_reachable(table):
    with pytest.raises(InputError) as caught:
        plan(table, "0.01bits")
    low = float(str(caught.value).split("possible: ")[1].split("bits")[0])
    assert plan(table, f"{low * 1.001}bits").units
    assert set(plan(table, "16bits").units.values()) == {"bf16"}


def test_constraints(tiny, table):
    pinned = plan(table, "8bits", Constraints(pin={"layers.0.mlp": "bf16", "layers.*.self_attn": "fp8"}))
    assert pinned.units["layers.0.mlp"] == "bf16"
    assert {fmt for name, fmt in pinned.units.items() if name.endswith("self_attn")} == {"fp8"}
    assert "mxfp4" not in plan(table, "5bits", Constraints(forbid=["mxfp4"])).units.values()
    one = plan(table, "6bits", Constraints(max_formats=1))
    assert len(set(one.units.values()) - {"bf16"}) == 1
    assert one.predicted_kl >= plan(table, "6bits").predicted_kl


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints(pin={"layers.99.mlp": "fp8"}), r"no such unit; the model has layers\.0\."),
        (Constraints(pin={"layers.0.mlp": "fp3"}), "unknown format 'fp3'"),
        (Constraints(forbid=["int3"]), "unknown format 'int3'"),
        (Constraints(max_formats=0), "allow at least 1"),
        (Constraints(forbid=["bf16", "fp8", "nvfp4", "mxfp4"]), "has no format left"),
    ],
)
def test_bad_constraints_are_refused(table, constraints, message):
    with pytest.raises(InputError, match=message):
        plan(table, "6bits", constraints)


def test_failed_probes_are_never_planned_with(table):
    broken = [Entry(unit=e.unit, format=e.format, failed_logits=3) if e.format == "nvfp4" else e for e in table.entries]
    found = plan(table.model_copy(update={"entries": broken}), "6bits")
    assert "nvfp4" not in found.units.values()
    with pytest.raises(InputError, match=r"cannot be pinned to nvfp4: the table has bf16, fp8, mxfp4"):
        plan(table.model_copy(update={"entries": broken}), "6bits", Constraints(pin={"layers.0.mlp": "nvfp4"}))
