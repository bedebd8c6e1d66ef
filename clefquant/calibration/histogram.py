"""The picture of a set's prompt lengths."""

from pathlib import Path

from clefquant.calibration.report import histogram


def draw_histogram(lengths: dict[int, int], title: str, path: Path) -> None:
    """Write a PNG with records by prompt length in bins of doubling width."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bins = histogram(lengths)
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bars = axes.bar(range(len(bins)), [item["records"] for item in bins], color="#4c78a8", width=0.9)
    axes.bar_label(bars, fontsize=8)
    axes.set_xticks(range(len(bins)), [f"≤ {item['up_to']:,}" for item in bins], rotation=30)
    axes.set_xlabel("prompt length, tokens")
    axes.set_ylabel("records")
    axes.set_title(f"{title}: {sum(lengths.values()):,} records, {sum(k * n for k, n in lengths.items()):,} tokens")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
