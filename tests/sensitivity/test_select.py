from dataclasses import replace
from pathlib import Path

import pytest

from clefquant.errors import CheckFailed, InputError
from clefquant.sensitivity.baselines import first_units, published_greedy, random_layouts
from clefquant.sensitivity.budget import parse_budget
from clefquant.sensitivity.candidates import candidates
from clefquant.sensitivity.frontier import pareto_frontier
from clefquant.sensitivity.frontier_picture import draw_selection
from clefquant.sensitivity.measure import Measurer
from clefquant.sensitivity.parts import Parts, split_evaluation
from clefquant.sensitivity.pictures import draw_table
from clefquant.sensitivity.plan import NO_CONSTRAINTS, Plan, plan, planning_options
from clefquant.sensitivity.select import additivity_residual, choose, select
from clefquant.sensitivity.sizing import sizing
from clefquant.sensitivity.stability import rank_intervals
from clefquant.sensitivity.store import ProbeStore
from clefquant.sensitivity.sweep import sweep
from clefquant.sensitivity.table import Entry, Figure
from clefquant.verify.frontier import read_frontier
from clefquant.verify.sweep_plots import sweep_charts


@pytest.fixture(scope="module")
def table(swept):
    return swept[1]


def unit_bytes(table, units: dict[str, str]) -> int:
    return sum(unit.bytes[units[unit.name]] for unit in table.units)


def test_parts_hold_their_shares_of_every_source_and_keep_content_together(records):
    many = [
        replace(r, record_id=f"{r.record_id}.{i}", content=(f"{r.record_id}.{i // 2}",))
        for i in range(10)
        for r in records
    ]
    parts = split_evaluation(many)
    assert sorted(r.record_id for part in parts for r in part) == sorted(r.record_id for r in many)
    for source in ("even", "odd"):
        sizes = [sum(r.source == source for r in part) / (len(many) / 2) for part in parts]
        assert sizes == pytest.approx([0.5, 0.25, 0.25], abs=0.1)
    contents = [{key for r in part for key in r.content} for part in parts]
    assert len(set.union(*contents)) == sum(map(len, contents))
    again = split_evaluation(many[::-1])
    assert [{r.record_id for r in part} for part in again] == [{r.record_id for r in part} for part in parts]


def test_records_chained_by_content_stay_together(records):
    chain = [
        replace(r, content=keys) for r, keys in zip(records, (("a",), ("b",), ("a", "b"), ("c",), ("d",)), strict=False)
    ]
    parts = split_evaluation(chain)
    assert any({"r0", "r1", "r2"} <= {r.record_id for r in part} for part in parts)


def test_too_small_sets_are_refused(records):
    with pytest.raises(InputError, match="no records"):
        split_evaluation([])
    with pytest.raises(InputError, match=r"2 records of different content.* at least 3"):
        split_evaluation([replace(record, content=("same",)) for record in records[:4]] + [records[7]])


def test_published_greedy_switches_by_damage_per_parameter(table):
    everything = {unit.name: "fp8" for unit in table.units}
    limit = unit_bytes(table, everything) - 1
    greedy = published_greedy(table, limit)
    assert greedy is not None
    order = sorted(table.units, key=lambda unit: table.entry(unit.name, "nvfp4").kl / unit.weights)
    assert [name for name, fmt in greedy.items() if fmt == "nvfp4"] == [order[0].name]
    assert published_greedy(table, 1) is None
    assert published_greedy(table, 10**12) == everything


def test_other_baselines_fill_the_size(table):
    limit = unit_bytes(table, {unit.name: "fp8" for unit in table.units}) * 8 // 10
    mlps = first_units(table, limit, "mlp")
    assert (
        mlps is None
        or [n for n, f in mlps.items() if f == "nvfp4"]
        == [u.name for u in table.units if u.kind == "mlp"][: list(mlps.values()).count("nvfp4")]
    )
    drawn = random_layouts(table, limit, ["bf16", "fp8", "nvfp4", "mxfp4"], 20, seed=1)
    assert len({tuple(units.values()) for units in drawn}) > 10
    smallest_step = min(
        b - a for u in table.units for a, b in zip(sorted(u.bytes.values()), sorted(u.bytes.values())[1:], strict=False)
    )
    assert all(limit - unit_bytes(table, units) >= 0 for units in drawn)
    assert sum(limit - unit_bytes(table, units) for units in drawn) / 20 < 40 * smallest_step
    assert drawn == random_layouts(table, limit, ["bf16", "fp8", "nvfp4", "mxfp4"], 20, seed=1)


def test_candidates_are_different_fit_and_hold_the_optimum_and_the_published_layout(table):
    counted = sizing(table, parse_budget("7bits"))
    options = planning_options(table, NO_CONSTRAINTS, counted)
    first = plan(table, "7bits")
    limit = int(7 * sum(unit.weights for unit in table.units) / 8)
    start = tuple(first.units[unit.name] for unit in table.units)
    found = candidates(table, options, pareto_frontier(options), start, counted.sizes, limit, 10)
    assert len({tuple(units.values()) for units in found}) == len(found) == 10
    assert found[0] == first.units
    assert found[1] == published_greedy(table, limit)
    assert all(unit_bytes(table, units) <= limit for units in found)
    one = candidates(table, options, pareto_frontier(options, 1), start, counted.sizes, limit, 10, max_formats=1)
    assert all(len(set(units.values()) - {"bf16"}) <= 1 for units in one)


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory, tiny_loaded, records, input_amax):
    out = tmp_path_factory.mktemp("select")
    parts = Parts(records[:4], records[4:6], records[6:])
    table = sweep(tiny_loaded, input_amax, parts.sweep, ["fp8", "nvfp4"], out)
    with ProbeStore(out / "sensitivity.sqlite") as store:
        measurer = Measurer(tiny_loaded, store, input_amax)
        yield out, table, parts, measurer, select(measurer, table, "7bits", parts, count=4)


def planned(predicted: float, size: int) -> Plan:
    return Plan({}, size, predicted, None, "6bits")


def measured(*record_kl: float) -> Entry:
    figure = Figure(value=sum(record_kl) / len(record_kl), error=None, questions=len(record_kl))
    return Entry(unit="", format="layout", figures={"kl": figure}, record_kl=list(record_kl))


def test_the_best_measured_is_chosen_and_the_prediction_decides_between_equals():
    plans = [planned(3e-5, 90), planned(1e-5, 100), planned(2e-5, 95)]
    clear = [measured(1.0, 1.1, 0.9, 1.0), measured(2.0, 2.1, 1.9, 2.0), measured(3.0, 3.1, 2.9, 3.0)]
    assert choose(plans, clear, "6bits") == (0, True)
    noisy = [measured(1.0, 1.1, 0.9, 1.0), measured(0.2, 3.0, 0.1, 0.9), measured(3.0, 3.1, 2.9, 3.0)]
    assert choose(plans, noisy, "6bits") == (1, True)  # 1.05 against 1.0, within the noise of either
    broken = Entry(unit="", format="layout", failed_logits=1)
    assert choose(plans, [broken, *clear[1:]], "6bits") == (1, True)
    with pytest.raises(CheckFailed, match="none of the 3 layouts measured gives finite answers"):
        choose(plans, [broken] * 3, "6bits")


def test_a_ceiling_is_kept_by_the_smallest_measured_within_it():
    plans = [planned(1e-5, 100), planned(2e-5, 80), planned(3e-5, 60)]
    entries = [measured(0.5, 0.5), measured(0.9, 0.9), measured(1.5, 1.5)]
    assert choose(plans, entries, "kl=1") == (1, True)
    assert choose(plans, entries, "kl=0.1") == (0, False)


def test_the_choice_and_its_figures_reach_the_layout(selected):
    _, table, _, _, found = selected
    values = [candidate.figures["kl"].value for candidate in found.candidates]
    assert values[found.chosen] <= 2 * min(values)
    assert found.within
    assert all(table.layout(c.units, None).bits_per_weight <= 7 for c in found.candidates)
    layout = found.layout(table)
    assert layout.units == found.choice.units
    assert layout.measured["kl"]["value"] == found.held_out["kl"].value
    assert layout.measured["predicted_kl"]["value"] == found.choice.predicted_kl


def test_frontier_points_can_be_read_back_as_layouts(selected):
    _, table, _, _, found = selected
    names = ["bf16", *table.formats]
    for (size, loss), code in list(zip(found.points, found.point_layouts, strict=True))[::7]:
        units = {unit.name: names[int(digit)] for unit, digit in zip(table.units, code, strict=True)}
        assert table.total_bytes(units) == size
        assert sum(table.losses()[name][fmt] for name, fmt in units.items()) == pytest.approx(loss)


def test_a_single_unit_layout_has_no_additivity_residual(selected):
    """With one unit quantized, the joint layout is the probe: prediction and measurement are the same logits."""
    _, table, parts, measurer, _ = selected
    layout = {unit.name: "nvfp4" if unit.name == "layers.1.mlp" else "bf16" for unit in table.units}
    (entry,) = measurer.measure([layout], parts.sweep, "one unit")
    ids = [record.record_id for record in measurer.in_order(parts.sweep)]
    residual = additivity_residual(table, layout, entry, ids)
    assert entry.kl == pytest.approx(table.entry("layers.1.mlp", "nvfp4").kl, rel=1e-3)
    assert residual is not None
    assert abs(residual.value) < 1e-3 * entry.kl
    other_order = entry.model_copy(update={"record_kl": entry.record_kl[::-1]})
    assert additivity_residual(table, layout, other_order, ids[::-1]) == residual, "paired by record, not by place"


def test_measurements_are_committed_and_not_repeated(selected, monkeypatch):
    _, table, parts, measurer, found = selected
    monkeypatch.setattr("clefquant.sensitivity.measure.simulated", lambda *_: pytest.fail("measured again"))
    assert select(measurer, table, "7bits", parts, count=4) == found


def test_a_kl_ceiling_gives_the_smallest_layout_measured_within_it(selected):
    _, table, parts, measurer, _ = selected
    ceiling = plan(table, "8.5bits").predicted_kl * 1.5
    found = select(measurer, table, f"kl={ceiling:.3g}", parts, count=5)
    inside = [c.total_bytes for c in found.candidates if c.figures["kl"].value <= ceiling]
    assert found.within == bool(inside)
    if inside:
        assert found.choice.total_bytes == min(inside)


def test_rank_intervals_hold_the_rank(table):
    for name in table.formats:
        found = rank_intervals(table, name)
        assert sorted(item.rank for item in found) == list(range(1, len(table.units) + 1))
        assert all(1 <= item.low <= item.high <= len(found) for item in found)


def test_the_report_s_page_shows_the_sweep(tmp_path: Path, selected):
    _, table, _, _, found = selected
    table.write(tmp_path / "sensitivity.json")
    found.write(tmp_path / "frontier.json")
    read = read_frontier(tmp_path)
    assert len(read["measured"]) == len(found.candidates)
    charts = sweep_charts(read, (0.3, found.held_out["kl"].value))
    assert list(charts) == ["frontier", "heat", "damage", "ranks fp8", "ranks nvfp4"]
    for unit in table.units:
        assert f"{unit.name} nvfp4: KL {table.entry(unit.name, 'nvfp4').kl:.2e}" in charts["heat"]
        rank = table.entry(unit.name, "nvfp4").rank
        assert f"{unit.name}: rank {rank.rank} ({rank.low:.0f} to {rank.high:.0f})" in charts["ranks nvfp4"]
    broken = [
        Entry(unit=e.unit, format=e.format, failed_logits=1) if e.unit == "layers.0.mlp" else e for e in table.entries
    ]
    table.model_copy(update={"entries": broken}).write(tmp_path / "sensitivity.json")
    failed = sweep_charts(read_frontier(tmp_path), None)
    assert "layers.0.mlp nvfp4: NaN" in failed["heat"]
    assert "layers.0.mlp" not in failed["damage"]
    (tmp_path / "sensitivity.json").unlink()
    assert list(sweep_charts(read_frontier(tmp_path), None)) == ["frontier"]


def test_pictures_are_written(tmp_path: Path, selected):
    _, table, _, _, found = selected
    files = {**draw_table(table, tmp_path), **draw_selection(table, found, tmp_path)}
    assert len(files) == 4
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files.values())
