"""``clefquant plan``: a layout from a finished sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefquant.cli.console import Output
from clefquant.cli.options import Budget, Forbidden, MaxFormats, Pins
from clefquant.errors import InputError

if TYPE_CHECKING:
    from clefquant.recipes.layout import Layout
    from clefquant.sensitivity.cost import Cost
    from clefquant.sensitivity.plan import Constraints


def plan(
    context: typer.Context,
    table: Annotated[
        Path, typer.Option("--table", help="A sweep's folder, or its sensitivity.json.", show_default=False)
    ],
    budget: Budget,
    out: Annotated[Path, typer.Option("--out", help="Layout file to write.")] = Path("layout.json"),
    cost: Annotated[
        Path | None,
        typer.Option("--cost", help="cost.json for a time= budget.", show_default="beside the table"),
    ] = None,
    pin: Pins = None,
    forbid: Forbidden = "",
    max_formats: MaxFormats = None,
) -> None:
    """Plan a layout for another budget from a finished sweep; nothing is measured.

    Example: `clefquant plan --table runs/sensitivity/sensitivity.json --budget 5.2bits --out runs/layout.json`
    """
    from clefquant.export.inspection import SENSITIVITY_FILE
    from clefquant.sensitivity.cost import COST_FILE, read_cost
    from clefquant.sensitivity.plan import plan as make
    from clefquant.sensitivity.table import read_table

    output: Output = context.obj
    table = table / SENSITIVITY_FILE if table.is_dir() else table
    found = read_table(table)
    beside = table.with_name(COST_FILE)
    file = cost or (beside if beside.is_file() else None)
    times = read_cost(file) if file else None
    chosen = make(found, budget, read_constraints(pin, forbid, max_formats), times)
    layout = found.layout(chosen.units, budget)
    layout.write(out)
    show_plan(output, layout, found.backbone_bytes({unit.name: "bf16" for unit in found.units}))
    output.say(f"predicted KL {chosen.predicted_kl:.2e} ± {chosen.predicted_error or 0:.1e}; not measured")
    value = {"predicted_kl": chosen.predicted_kl, "predicted_error": chosen.predicted_error}
    if times is not None:
        value["milliseconds"] = show_time(output, times, layout)
    rounding = [text for name, option in found.rounding.items() for text in (f"--{name}", option)]
    output.done(
        {**layout.model_dump(), **value},
        wrote={"layout": out},
        next_command=(
            "quantize",
            "--model",
            found.model,
            "--layout",
            out,
            *rounding,
            *("--calibration", "SET"),
            "--out",
            "DIR",
        ),
    )


def read_constraints(pin: list[str] | None, forbid: str, max_formats: int | None) -> "Constraints":
    """Constraints from their flags."""
    from clefquant.sensitivity.plan import Constraints

    pairs = [entry.partition("=") for entry in pin or []]
    for entry, (unit, equals, name) in zip(pin or [], pairs, strict=True):
        if not (unit and equals and name):
            raise InputError(f"--pin {entry!r} is not UNIT=FORMAT; write for example --pin layers.0.mlp=bf16.")
    forbidden = [name for name in forbid.split(",") if name]
    return Constraints({unit: name for unit, _, name in pairs}, forbidden, max_formats)


def show_time(output: Output, cost: "Cost", layout: "Layout") -> float:
    """Say what the matrix products of a layout take; milliseconds per 1,000 tokens."""
    time, before = cost.total(layout.units), cost.total(dict.fromkeys(layout.units, "bf16"))
    output.say(
        f"matrix products on {cost.device}: {before:.3g} → {time:.3g} ms per 1,000 tokens ({time / before:.2f}x)"
    )
    return time


def show_plan(output: Output, layout: "Layout", source_bytes: int) -> None:
    """How many units have each format, and the size."""
    counts = ", ".join(f"{list(layout.units.values()).count(name)} {name}" for name in layout.formats())
    sizes = f"{source_bytes / 1e6:,.1f} MB → {layout.bytes / 1e6:,.1f} MB"
    output.say(f"{counts}: {sizes}, {layout.bits_per_weight:.2f} bits a weight")
