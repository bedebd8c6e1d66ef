"""Every format the toolkit writes is clean to the auditor, on the bundled nano."""

import pytest

from clefquant.export.audit import audit
from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.statistics import InputStatistics
from clefquant.recipes.formats import FORMATS
from clefquant.recipes.layout import make_layout


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_checkpoints_of_every_format_are_clean(nano, tmp_path, fmt):
    fits = {unit.name: not any(fmt.obstacle(linear) for linear in unit.linears) for unit in nano.units}
    chosen = [unit.name for unit in nano.units if fits[unit.name]][:4]
    layout = make_layout(nano, {unit.name: fmt.name if unit.name in chosen else "bf16" for unit in nano.units})
    linears = [linear.name for unit in nano.units for linear in unit.linears]
    statistics = {
        name: InputStatistics(20.0, 1.0, token_p50=1.0, token_p99=2.0, dead_channels=0, tokens=1) for name in linears
    }
    folder = write_checkpoint(nano, layout, to_nearest(nano, layout, statistics), tmp_path / fmt.name)
    assert [found for found in audit(folder) if found.severity == "error"] == []
