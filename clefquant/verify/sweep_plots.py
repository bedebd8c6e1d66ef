"""Charts of the sweep a release was planned by: heat map, damage against bytes saved, frontier, certainty of ranks."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from clefquant.verify import svg
from clefquant.verify.log_plot import Axis, Mark, Marks, decades, scatter

_KINDS = (("gdn", "GDN"), ("attention", "attention"), ("mlp", "MLP"))
#: Decades of KL, from 1e-7 to 0.1, that have a colour of their own.
_COLDEST, _HOTTEST = -7, -1


def sweep_charts(frontier: Mapping[str, Any] | None, here: tuple[float, float] | None) -> dict[str, str]:
    """Name to figure, of what :func:`~.frontier.read_frontier` found. ``here``: MB and KL of this release."""
    if not frontier:
        return {}
    found = {"frontier": _frontier(frontier, here)} if len(frontier["points"]) > 1 else {}
    if sweep := frontier.get("sweep"):
        found |= {"heat": _heat_map(sweep), "damage": _damage(sweep), **_ranks(sweep)}
    return found


def _frontier(frontier: Mapping[str, Any], here: tuple[float, float] | None) -> str:
    predicted = [(size / 1e6, loss) for size, loss in frontier["points"] if loss > 0]
    series = [Marks("best layouts of the sweep, predicted", "a", [_bare(*point) for point in predicted], joined=True)]
    measured = [
        Mark(one["bytes"] / 1e6, one["kl"], *_ends(one), f"{one['bytes'] / 1e6:.4g} MB: KL {one['kl']:.2e} measured")
        for one in frontier.get("measured", ())
    ]
    if measured:
        series.append(Marks("candidates, measured", "c", measured))
    if here:
        series.append(Marks("this release, measured", "b", [_bare(*here)]))
    everything = [mark for one in series for mark in one.marks]
    sizes = [mark.x for mark in everything] or [0.0]
    # far to the right the prediction falls by decades that nothing measured reaches
    shown = [mark.y for one in series[1:] for mark in one.marks if mark.y > 0] or [loss for _, loss in predicted]
    floor = min(shown, default=1e-9) / 100
    y = Axis("KL, nats", decades([max(mark.y, floor) for mark in everything]), logarithmic=True)
    body = scatter(series, Axis("size of the weights, MB", (min(sizes), max(sizes))), y)
    return svg.figure(
        body, 320, "Frontier of size and loss",
        "What each size can reach by the sweep, the layouts that were measured, and where this release is.",
    )  # fmt: skip


def _heat_map(sweep: Mapping[str, Any]) -> str:
    layers = sorted({unit["layer"] for unit in sweep["units"]})
    rows = []
    for kind, title in _KINDS:
        units = {unit["layer"]: unit for unit in sweep["units"] if unit["kind"] == kind}
        for name in sweep["formats"] if units else ():
            cells = [_cell(units[layer], name) if layer in units else ("", "", "") for layer in layers]
            rows.append((f"{title} {name}", cells))
    body, height = svg.grid(rows, left=132)
    caption = "KL of one unit quantized alone, first layer left; the number is the power of ten (-4 = 1e-4), x failed."
    return svg.figure(body, height, "Heat map of damage by layer, kind of unit and format", caption)


def _cell(unit: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    """CSS class, mark and tip."""
    if (found := unit["formats"].get(name)) is None:
        return "", "", ""
    if found["kl"] is None:
        return "heat-x", "x", f"{unit['name']} {name}: NaN"
    power = math.floor(math.log10(max(found["kl"], 1e-12)))
    step = min(max(power, _COLDEST), _HOTTEST) - _COLDEST
    return f"heat-{step}", str(power), f"{unit['name']} {name}: KL {found['kl']:.2e}"


def _damage(sweep: Mapping[str, Any]) -> str:
    series = []
    for number, name in enumerate(sweep["formats"]):
        marks = [
            Mark(found["saved"] / 1e6, found["kl"], *_ends(found), f"{unit['name']} {name}: KL {found['kl']:.2e}")
            for unit, found in _known(sweep, name)
        ]
        series.append(Marks(name, f"s{number % 4}", marks))
    everything = [mark for one in series for mark in one.marks]
    sizes = [mark.x for mark in everything] or [1.0]
    if noise := sweep["noise"]:
        line = [_bare(0.0, noise), _bare(max(sizes), noise)]
        series.append(Marks("noise: BF16 in other batches", "ideal", line, joined=True))
    floor = max(noise or 0.0, 1e-9)
    bounds = decades([max(mark.y, floor) for mark in everything])
    body = scatter(series, Axis("MB the unit saves", (0.0, max(sizes))), Axis("KL, nats", bounds, logarithmic=True))
    return svg.figure(body, 320, "Damage against bytes saved", "What each unit costs and saves in each format, alone.")


def _ranks(sweep: Mapping[str, Any]) -> dict[str, str]:
    """A chart per format that has ranks."""
    found = {}
    for number, name in enumerate(sweep["formats"]):
        ranked = [(unit, one["rank"]) for unit, one in _known(sweep, name) if one["rank"]]
        if not ranked:
            continue
        marks = [
            Mark(rank["rank"], rank["rank"], rank["low"], rank["high"],
                 f"{unit['name']}: rank {rank['rank']} ({rank['low']:.0f} to {rank['high']:.0f})")
            for unit, rank in ranked
        ]  # fmt: skip
        ends = (1.0, float(len(marks)))
        body = scatter(
            [Marks(name, f"s{number % 4}", marks)],
            Axis("units by damage, least first", ends),
            Axis("rank, records drawn anew", ends),
            260,
        )
        caption = (
            f"How sure the order of units in {name} is: middle 90 % of each unit's rank over other draws of records."
        )
        found[f"ranks {name}"] = svg.figure(body, 260, f"Certainty of ranks, {name}", caption)
    return found


def _known(sweep: Mapping[str, Any], name: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Units with what was found in one format, failed probes left out."""
    for unit in sweep["units"]:
        if (found := unit["formats"].get(name)) is not None and found["kl"] is not None:
            yield unit, found


def _bare(x: float, y: float) -> Mark:
    return Mark(x, y, y, y, f"{x:.4g} MB: KL {y:.2e}")


def _ends(found: Mapping[str, Any]) -> tuple[float, float]:
    """One standard error down and up."""
    error = found["error"] or 0.0
    return found["kl"] - error, found["kl"] + error
