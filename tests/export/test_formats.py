"""Every format the toolkit writes is clean to the auditor, on the bundled nano."""

import pytest

from clefquant.export.audit import audit
from clefquant.export.describe_model import describe_model
from clefquant.export.parts import FORMAT_TITLES, format_note, picture
from clefquant.export.release_folder import export_release
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
    card = (export_release(folder, tmp_path / "release").path / "README.md").read_text()
    assert f"- {format_note(fmt.name)}\n" in card
    assert f"| {FORMAT_TITLES[fmt.name]} |" in card
    assert f"\n- {fmt.name}\n" in card.split("---")[1]
    shown = picture(layout.units)[1:3]
    assert not any("?" in line for line in shown)
    assert set(describe_model(folder)[1]["units"].values()) <= {
        "bf16",
        fmt.name,
        fmt.name.removesuffix("a16").split("-")[0],
    }
