"""Timed products are the right products, a time budget is kept, and what is missing is named."""

import json
from pathlib import Path

import pytest
import torch

from clefquant.errors import InputError
from clefquant.quantize.unit import quantize_unit
from clefquant.recipes.formats import FORMATS, find_format
from clefquant.release.units import Linear, Unit
from clefquant.sensitivity.budget import parse_budget
from clefquant.sensitivity.candidates import candidates
from clefquant.sensitivity.cost import Cost, device_name, measure_cost, read_cost
from clefquant.sensitivity.frontier import pareto_frontier
from clefquant.sensitivity.plan import NO_CONSTRAINTS, plan, planning_options
from clefquant.sensitivity.products import product
from clefquant.sensitivity.run import run_sensitivity
from clefquant.sensitivity.sizing import sizing

SPEED = {"bf16": 1.0, "fp8": 0.55, "nvfp4": 1.2, "mxfp4": 0.4}


@pytest.fixture(scope="module")
def table(swept):
    return swept[1]


@pytest.fixture(scope="module")
def cost(table) -> Cost:
    """Of a GPU on which nvfp4 is slower than bf16 and mxfp4 the fastest."""
    times = {unit.name: {name: unit.weights * 1e-6 * SPEED[name] for name in unit.bytes} for unit in table.units}
    return Cost(origin={}, model="tiny", device="a GPU", tokens=512, kernels={}, units=times)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_every_product_is_that_of_the_stored_weight(fmt):
    linear = Linear("group.merged", 96, 128)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 128, generator=generator).bfloat16()
    x = torch.randn(32, 128, generator=generator).bfloat16()
    found = quantize_unit(Unit("group", 0, "mlp", ((linear,),)), {linear.name: weight}, fmt, {linear.name: 5.0})
    y = product(fmt, weight, found[linear.name]).run(x)
    expected = x.float() @ found[linear.name].weight.float().T
    assert y.dtype == torch.bfloat16
    # rounding X to eight bits, and bfloat16
    assert float((y.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < 0.02
    assert torch.equal(product(find_format("bf16"), weight, None).run(x), x @ weight.T)


def test_every_unit_is_timed_in_every_format_that_can_store_it(tiny, tmp_path: Path):
    cost = measure_cost(tiny, ["fp8", "int8", "nvfp4"], tokens=64)
    assert list(cost.units) == [unit.name for unit in tiny.units]
    assert all(set(times) == {"bf16", "fp8", "int8", "nvfp4"} for times in cost.units.values())
    assert all(time > 0 for times in cost.units.values() for time in times.values())
    assert cost.kernels["bf16"] == "bf16 matmul"
    assert cost.kernels["int8"] == "int8 _int_mm"
    assert cost.kernels["nvfp4"] == "dequantize, then bf16 matmul"
    same = [unit.name for unit in tiny.units if unit.kind == "mlp"]
    assert len({cost.units[name]["fp8"] for name in same}) == 1  # equal shapes are timed once
    cost.write(tmp_path / "cost.json")
    assert read_cost(tmp_path / "cost.json") == cost


def test_a_time_budget_is_kept_and_its_best_layout_found(table, cost):
    before = cost.total({unit.name: "bf16" for unit in table.units})
    found = plan(table, "time=0.7x", cost=cost)
    assert cost.total(found.units) <= 0.7 * before
    assert "nvfp4" not in found.units.values()  # slower than bf16, and worse
    tighter = plan(table, "time=0.5x", cost=cost)
    assert cost.total(tighter.units) <= 0.5 * before
    assert tighter.predicted_kl > found.predicted_kl
    milliseconds = plan(table, f"time={0.7 * before:.9g}ms", cost=cost)
    assert milliseconds.predicted_kl == pytest.approx(found.predicted_kl)


def test_candidates_of_a_time_budget_fit_it(table, cost):
    counted = sizing(table, parse_budget("time=0.6x"), cost)
    options = planning_options(table, NO_CONSTRAINTS, counted)
    start = tuple(plan(table, "time=0.6x", cost=cost).units[unit.name] for unit in table.units)
    found = candidates(table, options, pareto_frontier(options), start, counted.sizes, counted.limit(0.6), 8)
    limit = 0.6 * cost.total({unit.name: "bf16" for unit in table.units})
    assert len(found) == 8
    assert all(cost.total(units) <= limit * (1 + 1e-6) for units in found)


@pytest.mark.parametrize("form", ["time={}x", "time={}ms"])
def test_times_out_of_reach_name_both_ends(table, cost, form):
    for value in (1e-6, 1e6):
        with pytest.raises(
            InputError, match=r"(less than the smallest|more than the largest).*possible: time=\S+ to time="
        ):
            plan(table, form.format(f"{value:f}"), cost=cost)


def test_without_times_the_message_says_how_to_get_them(table, cost):
    with pytest.raises(InputError, match=r"needs a cost table of the GPU that will serve.*--measure-cost --model"):
        plan(table, "time=0.7x")
    partial = cost.model_copy(
        update={"units": {name: {"bf16": 1.0, "fp8": 0.5} for name in cost.units}, "model": "other"}
    )
    with pytest.raises(InputError, match=r"has no time of layers\.0\.\S+ in mxfp4, nvfp4"):
        plan(table, "time=0.7x", cost=partial)


def test_restart_measures_times_anew(tiny, table, tmp_path: Path, cost, monkeypatch):
    origin = {"parents": {"model": tiny.fingerprint}}
    kept = cost.model_copy(update={"origin": origin, "device": device_name(), "kernels": {"fp8": "a kernel"}})
    kept.write(tmp_path / "cost.json")

    def measured(*_, **__):
        raise InterruptedError

    monkeypatch.setattr("clefquant.sensitivity.run.measure_cost", measured)
    arguments = (tiny, tmp_path / "none", tmp_path / "none", ["fp8"], "time=0.7x", tmp_path)
    with pytest.raises(InputError, match="none"):  # past the times, at the sets
        run_sensitivity(*arguments)
    with pytest.raises(InterruptedError):
        run_sensitivity(*arguments, restart=True)


def test_other_files_are_no_cost_table(tmp_path: Path, cost):
    (tmp_path / "cost.json").write_text("{}")
    with pytest.raises(InputError, match="schema_version"):
        read_cost(tmp_path / "cost.json")
    cost.write(tmp_path / "cost.json")
    damaged = json.loads((tmp_path / "cost.json").read_text())
    del damaged["units"]
    (tmp_path / "cost.json").write_text(json.dumps(damaged))
    with pytest.raises(InputError, match="no readable cost table"):
        read_cost(tmp_path / "cost.json")
