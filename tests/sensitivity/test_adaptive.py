"""An adaptive sweep spends its records where ranks are uncertain, and the same ones after a kill."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from clefquant.sensitivity import walk
from clefquant.sensitivity.adaptive import rounds, uncertain
from clefquant.sensitivity.metrics import mean_of_sums
from clefquant.sensitivity.plan import plan
from clefquant.sensitivity.stability import rank_intervals
from clefquant.sensitivity.sweep import sweep
from clefquant.sensitivity.table import SensitivityTable

FORMATS = ["fp8", "nvfp4"]


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory, tiny_loaded, records, input_amax):
    out = tmp_path_factory.mktemp("adaptive")
    return out, sweep(tiny_loaded, input_amax, records, FORMATS, out, adaptive=True)


def with_sums(table: SensitivityTable, sums: dict[str, list[float]]) -> SensitivityTable:
    entries = [
        entry.model_copy(update={"record_kl": sums[entry.unit]}) for entry in table.entries if entry.unit in sums
    ]
    return table.model_copy(update={"entries": entries, "formats": ["fp8"]})


def test_rounds_reach_a_quarter_half_and_all():
    assert [list(rounds(count)) for count in (8, 9, 4, 1)] == [[2, 4, 8], [2, 4, 9], [1, 2, 4], [1]]


def test_records_go_where_ranks_are_uncertain(adaptive, records):
    _, table = adaptive
    seen = {(entry.unit, entry.format): len(entry.record_kl) for entry in table.entries}
    assert set(seen.values()) > {2}
    assert set(seen.values()) <= {2, 4, 8}
    for name in FORMATS:
        counts = [count for (_, fmt), count in seen.items() if fmt == name]
        assert sum(counts) <= 0.55 * len(counts) * len(records)
    # those that stopped at once are those whose rank was surest then
    first = table.model_copy(
        update={"entries": [e.model_copy(update={"record_kl": e.record_kl[:2]}) for e in table.entries]}
    )
    for name in FORMATS:
        width = {item.unit: item.high - item.low for item in rank_intervals(first, name)}
        stopped = [width[unit] for (unit, fmt), count in seen.items() if fmt == name and count == 2]
        went_on = [width[unit] for (unit, fmt), count in seen.items() if fmt == name and count > 2]
        assert max(stopped) <= min(went_on, default=np.inf)


def test_only_uncertain_ranks_ask_for_more(swept):
    units = [unit.name for unit in swept[1].units]
    clear = {name: [float(10**place)] * 8 for place, name in enumerate(units)}
    assert uncertain(with_sums(swept[1], clear)) == set()
    mixed = clear | {units[0]: [1.0, 9.0] * 4, units[1]: [9.0, 1.0] * 4}
    assert uncertain(with_sums(swept[1], mixed)) == {(units[0], "fp8"), (units[1], "fp8")}


def test_a_killed_adaptive_sweep_ends_with_the_same_table(
    tmp_path: Path, adaptive, tiny_loaded, records, input_amax, monkeypatch
):
    def killed_after(count: int):
        numbers = itertools.count()

        def run(*args, **keywords):
            for probe in walk.probes(*args, **keywords):
                if next(numbers) == count:
                    raise KeyboardInterrupt
                yield probe

        return run

    for count in (5, 28, 1):  # the second and third in a later round
        monkeypatch.setattr("clefquant.sensitivity.sweep.probes", killed_after(count))
        with pytest.raises(KeyboardInterrupt):
            sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, adaptive=True)
    monkeypatch.undo()
    assert sweep(tiny_loaded, input_amax, records, FORMATS, tmp_path, adaptive=True) == adaptive[1]
    assert (tmp_path / "sensitivity.json").read_bytes() == (adaptive[0] / "sensitivity.json").read_bytes()


def test_fewer_records_keep_the_mean_and_its_error(adaptive):
    _, table = adaptive
    for entry in table.entries:
        found = mean_of_sums(table.record_sums(entry), table.questions)
        figure = entry.figures["kl"]
        assert found.value == pytest.approx(figure.value)
        # sqrt(R / (R - 1)) with the table's R instead of the entry's
        few, all_ = len(entry.record_kl), len(table.record_ids)
        assert found.error == pytest.approx(figure.error * np.sqrt((few - 1) / few * all_ / (all_ - 1)))


def test_a_table_of_unequal_records_can_be_planned_with(adaptive):
    found = plan(adaptive[1], "7bits")
    entries = [adaptive[1].entry(name, fmt) for name, fmt in found.units.items() if fmt != "bf16"]
    assert found.predicted_kl == pytest.approx(sum(entry.kl for entry in entries))
    assert found.predicted_error > 0
