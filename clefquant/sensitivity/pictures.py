"""Pictures of a sweep, as PNG files."""

from pathlib import Path
from typing import Any

import numpy as np

from clefquant.sensitivity.stability import rank_intervals
from clefquant.sensitivity.table import SensitivityTable

_DPI = 150
_KINDS = (("gdn", "Gated DeltaNet"), ("attention", "attention"), ("mlp", "MLP"))
_COLORS = {"fp8": "#1b7837", "nvfp4": "#2166ac", "mxfp4": "#b35806"}
_OTHER_COLORS = ("#762a83", "#01665e", "#8c510a", "#c51b7d")


def draw_table(table: SensitivityTable, out: Path) -> dict[str, Path]:
    """Heat map, damage per byte saved and stability of ranks."""
    return {
        "heat map": save_figure(_heat_map(table), out / "sensitivity_heat_map.png"),
        "damage per byte": save_figure(_damage_per_byte(table), out / "sensitivity_damage_per_byte.png"),
        "rank stability": save_figure(_stability(table), out / "sensitivity_rank_stability.png"),
    }


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """A figure of its own (no global state) and its row of axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def save_figure(figure: Any, path: Path) -> Path:
    """Write a PNG."""
    figure.savefig(path, dpi=_DPI)
    return path


def _heat_map(table: SensitivityTable) -> Any:
    """log10 of KL: one panel per kind of unit, layers down, formats across; a failed probe is crossed out."""
    from matplotlib.colors import Normalize

    layers_of = {kind: sorted({u.layer for u in table.units if u.kind == kind}) for kind, _ in _KINDS}
    tallest = max(map(len, layers_of.values()))
    values = [np.log10(max(e.kl, 1e-12)) for e in table.entries if not e.failed_logits]
    norm = Normalize(min(values, default=-6), max(values, default=0))
    figure, axes = new_figure(2.4 + 0.9 * len(table.formats) * len(_KINDS), 1.8 + 0.28 * tallest, len(_KINDS))
    image = None
    for axis, (kind, title) in zip(axes, _KINDS, strict=True):
        layers = layers_of[kind]
        grid = np.full((max(len(layers), 1), len(table.formats)), np.nan)
        for unit in (unit for unit in table.units if unit.kind == kind):
            for column, name in enumerate(table.formats):
                entry, row = table.entry(unit.name, name), layers.index(unit.layer)
                if entry is not None and entry.failed_logits:
                    axis.text(column, row, "×", ha="center", va="center", color="crimson", fontsize=12)
                elif entry is not None:
                    grid[row, column] = np.log10(max(entry.kl, 1e-12))
                    shade = "white" if norm(grid[row, column]) < 0.6 else "black"
                    if tallest <= 40:
                        axis.text(
                            column,
                            row,
                            _short(entry.kl),
                            ha="center",
                            va="center",
                            color=shade,
                            fontsize=7,
                        )
        image = axis.imshow(grid, aspect="auto", cmap="magma", norm=norm)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(table.formats)), table.formats)
        axis.set_yticks(range(len(layers)), layers)
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=list(axes), label="log10 KL, one unit quantized")
    figure.suptitle(f"{table.model}: damage of one unit alone", fontsize=11)
    return figure


def _damage_per_byte(table: SensitivityTable) -> Any:
    """KL against bytes saved, one mark per unit and format."""
    figure, (axis,) = new_figure(8.5, 5.0)
    markers = {"gdn": "o", "attention": "^", "mlp": "s"}
    known = {unit.name: unit for unit in table.units}
    for number, name in enumerate(table.formats):
        color = _color(name, number)
        for kind, title in _KINDS:
            entries = [
                e for e in table.entries if e.format == name and known[e.unit].kind == kind and not e.failed_logits
            ]
            if not entries:
                continue
            saved = [(known[e.unit].bytes["bf16"] - known[e.unit].bytes[name]) / 1e6 for e in entries]
            errors = [e.figures["kl"].error or 0.0 for e in entries]
            low = [min(error, 0.9 * e.kl) for e, error in zip(entries, errors, strict=True)]  # keeps bars on a log axis
            axis.errorbar(
                saved, [e.kl for e in entries], [low, errors], fmt=markers[kind], color=color, alpha=0.75, ms=5, lw=0.8,
                label=f"{name}, {title}",
            )  # fmt: skip
    if (noise := table.noise.figures.get("kl")) and noise.value > 0:
        axis.axhline(noise.value, color="grey", ls=":", lw=1, label="noise: BF16 in other batches")
    axis.set(yscale="log", xlabel="MB saved by the unit", ylabel="KL in nats, one unit quantized (± standard error)")
    axis.set_title(f"{table.model}: what a unit costs and what it saves", fontsize=11)
    axis.grid(alpha=0.25, which="both")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _stability(table: SensitivityTable) -> Any:
    """Rank of each unit by KL with its 90 % interval over resampled records, a panel per format."""
    figure, axes = new_figure(1.8 + 2.9 * len(table.formats), 1.5 + 0.22 * len(table.units), len(table.formats))
    for number, (axis, name) in enumerate(zip(axes, table.formats, strict=True)):
        found = sorted(rank_intervals(table, name), key=lambda item: item.rank)
        rows = np.arange(len(found))
        for row, item in zip(rows, found, strict=True):
            axis.plot(
                [item.low, item.high], [row, row], color=_color(name, number), lw=3, alpha=0.35, solid_capstyle="round"
            )
        axis.plot([item.rank for item in found], rows, "o", color=_color(name, number), ms=4)
        axis.set_yticks(rows, [item.unit.removeprefix("layers.") for item in found], fontsize=7)
        axis.invert_yaxis()
        axis.set(xlabel="rank (1 = least damage)", title=name)
        axis.grid(alpha=0.25, axis="x")
    figure.suptitle(f"{table.model}: how sure the order of units is (90 % of resampled sets)", fontsize=11)
    return figure


def _short(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def _color(name: str, number: int) -> str:
    return _COLORS.get(name, _OTHER_COLORS[number % len(_OTHER_COLORS)])
