"""The picture of a selection: predicted frontier, measured candidates, the choice."""

from pathlib import Path
from typing import Any

from clefquant.sensitivity.pictures import new_figure, save_figure
from clefquant.sensitivity.selection import Selection
from clefquant.sensitivity.table import SensitivityTable


def draw_selection(table: SensitivityTable, selection: Selection, out: Path) -> dict[str, Path]:
    """The frontier with its measured points."""
    return {"frontier picture": save_figure(_frontier(table, selection), out / "frontier.png")}


def _frontier(table: SensitivityTable, selection: Selection) -> Any:
    """Predicted frontier, measured candidates and the choice, KL against size of the release."""
    figure, (axis,) = new_figure(8.0, 5.0)
    sizes, losses = zip(*selection.points, strict=True)
    positive = [(size / 1e6, loss) for size, loss in zip(sizes, losses, strict=True) if loss > 0]
    axis.step(
        [size for size, _ in positive],
        [loss for _, loss in positive],
        where="post",
        color="#999999",
        lw=1.2,
        label="predicted frontier",
    )
    done = [c for c in selection.candidates if c.figures]
    axis.errorbar(
        [c.total_bytes / 1e6 for c in done], [c.figures["kl"].value for c in done],
        [min(c.figures["kl"].error or 0.0, 0.9 * c.figures["kl"].value) for c in done],
        fmt="o", color="#2166ac", ms=5, alpha=0.7, lw=0.8, label="candidates, measured on the choosing part",
    )  # fmt: skip
    axis.plot(
        [c.total_bytes / 1e6 for c in done],
        [c.predicted_kl for c in done],
        "x",
        color="#2166ac",
        ms=5,
        alpha=0.5,
        label="candidates, predicted",
    )
    if figure_kl := selection.held_out.get("kl"):
        axis.errorbar(
            [selection.choice.total_bytes / 1e6],
            [figure_kl.value],
            [figure_kl.error or 0.0],
            fmt="*",
            color="#b2182b",
            ms=14,
            label="chosen, measured on the held-out part",
        )
    # the part around the choice: the far end of a frontier is decades below anything measured
    shown = [c.figures["kl"].value for c in done] + [c.predicted_kl for c in done]
    low = min((value for value in shown if value > 0), default=1e-9)
    high = max([*(loss for _, loss in positive), *shown], default=1.0)
    right = max([size for size, loss in positive if loss > low / 100] + [c.total_bytes / 1e6 for c in done])
    left = min(size / 1e6 for size in sizes)
    axis.set_xlim(left - 0.03 * (right - left), right + 0.03 * (right - left))
    axis.set_ylim(low / 100, 3 * high)
    axis.set(
        yscale="log", xlabel="MB of the release's weights, joint head included", ylabel="KL in nats (± standard error)"
    )
    axis.set_title(f"{table.model}: budget {selection.budget}", fontsize=11)
    axis.grid(alpha=0.25, which="both")
    axis.legend(fontsize=8)
    return figure
