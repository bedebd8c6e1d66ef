"""Small charts as inline SVG that take their colours from the page, so that light, dark and paper all work.

Every chart is a figure with a caption; its numbers are also in a table of the page, so the picture is decoration for
a screen reader and has a one-sentence label. Coordinates are in a 640-unit-wide box that scales with the page.
"""

import html
from collections.abc import Sequence
from typing import NamedTuple

WIDTH = 640
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 12, 44


class Series(NamedTuple):
    """Points of a line; ``style`` is a CSS class of the page (``a`` BF16, ``b`` candidate, ``ideal``)."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str


def figure(body: str, height: int, label: str, caption: str) -> str:
    """A chart with its caption."""
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">{body}</svg>'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def text(x: float, y: float, words: str, anchor: str = "middle", style: str = "") -> str:
    """Words at a place."""
    chosen = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{chosen}>{html.escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, style: str, tip: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" class="{style}">'
        f"<title>{html.escape(tip)}</title></rect>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def columns(values: Sequence[float], labels: Sequence[str], tips: Sequence[str], axis: str, height: int = 240) -> str:
    """Upright bars over ordered bins; empty labels leave a tick out."""
    top = max([*values, 1e-12])
    step = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
    floor, span = height - BOTTOM, height - BOTTOM - TOP
    parts = [_line(LEFT, floor, WIDTH - RIGHT, floor, "axis")]
    for index, (value, label, tip) in enumerate(zip(values, labels, tips, strict=True)):
        x, tall = LEFT + index * step, span * value / top
        parts.append(_rect(x + 1, floor - tall, step - 2, tall, "b", tip))
        if label:
            parts.append(text(x + step / 2, floor + 16, label, style="tick"))
    parts.append(text(LEFT - 6, TOP + 10, f"{top:,.0f}", "end", "tick"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, height - 8, axis))
    return "".join(parts)


def rows(
    names: Sequence[str],
    values: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    bounds: tuple[float, float],
    unit: str,
) -> tuple[str, int]:
    """Lying bars with their interval, one per name, and the chart's height. ``bounds``: ends of the axis."""
    left, tall = 190, 26
    height = TOP + tall * len(names) + BOTTOM

    def x(value: float) -> float:
        inside = min(max(value, bounds[0]), bounds[1])
        return left + (inside - bounds[0]) / (bounds[1] - bounds[0]) * (WIDTH - left - 80)

    parts = []
    for index, (name, value, lower, upper) in enumerate(zip(names, values, low, high, strict=True)):
        y = TOP + index * tall
        short = name if len(name) <= 26 else name[:25] + "…"
        tip = f"{name}: {value:.4g}{unit} ({lower:.4g} to {upper:.4g})"
        parts += [
            text(left - 8, y + 16, short, "end"),
            _rect(x(bounds[0]), y + 4, x(value) - x(bounds[0]), 16, "b", tip),
            _line(x(lower), y + 12, x(upper), y + 12, "whisker"),
            text(WIDTH - 70, y + 16, f"{value:.4g}{unit}", "start", "tick"),
        ]
    floor = TOP + tall * len(names)
    parts += [_line(x(bounds[0]), floor, x(bounds[1]), floor, "axis")]
    parts += [text(x(bound), floor + 16, f"{bound:.4g}{unit}", style="tick") for bound in bounds]
    return "".join(parts), height


def lines(
    series: Sequence[Series],
    x_bounds: tuple[float, float],
    y_bounds: tuple[float, float],
    axes: tuple[str, str],
    height: int = 320,
) -> str:
    """Lines with a dot at every point, axis names, end ticks and a legend."""
    floor, span = height - BOTTOM, height - BOTTOM - TOP

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x_bounds[0]) / ((x_bounds[1] - x_bounds[0]) or 1)
        up = (point[1] - y_bounds[0]) / ((y_bounds[1] - y_bounds[0]) or 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), floor - up * span

    parts = [_line(LEFT, floor, WIDTH - RIGHT, floor, "axis"), _line(LEFT, TOP, LEFT, floor, "axis")]
    for number, one in enumerate(series):
        places = [place(point) for point in one.points]
        parts.append(f'<polyline class="line {one.style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        if one.style != "ideal":
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{one.style}">'
                f"<title>{html.escape(f'{one.name}: {a:.4g}, {b:.4g}')}</title></circle>"
                for (x, y), (a, b) in zip(places, one.points, strict=True)
            ]
        parts.append(_line(LEFT + 12, TOP + 12 + 18 * number, LEFT + 36, TOP + 12 + 18 * number, f"line {one.style}"))
        parts.append(text(LEFT + 42, TOP + 16 + 18 * number, one.name, "start", "tick"))
    for value in x_bounds:
        parts.append(text(place((value, 0))[0], floor + 16, f"{value:.4g}", style="tick"))
    for value in y_bounds:
        parts.append(text(LEFT - 6, place((0, value))[1] + 4, f"{value:.3g}", "end", "tick"))
    parts += [text((LEFT + WIDTH - RIGHT) / 2, height - 8, axes[0])]
    parts += [
        f'<text transform="translate(14 {(TOP + floor) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(axes[1])}</text>"
    ]
    return "".join(parts)


def grid(
    rows_: Sequence[tuple[str, Sequence[tuple[str, str, str]]]], cell: int = 15, left: int = 84
) -> tuple[str, int]:
    """A heat map: per row a name and cells (CSS class, short mark, tip); and its height. Marks keep it readable in
    grey."""
    widest = max((len(cells) for _, cells in rows_), default=1)
    wide = min(40.0, (WIDTH - left - RIGHT) / widest)
    parts = []
    for index, (name, cells) in enumerate(rows_):
        y = TOP + index * (cell + 4)
        parts.append(text(left - 8, y + 12, name, "end", "tick"))
        for at, (style, mark, tip) in enumerate(cells):
            if style:
                parts.append(_rect(left + at * wide, y, wide - 1, cell, style, tip))
                parts.append(text(left + (at + 0.5) * wide, y + 11, mark, style="mark"))
    return "".join(parts), TOP + len(rows_) * (cell + 4) + 8
