"""Scatter plots with whiskers, on straight or logarithmic axes, as inline SVG (see :mod:`~.svg`)."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from clefquant.verify.svg import BOTTOM, LEFT, RIGHT, TOP, WIDTH, text

_DECADE = 10.0


class Mark(NamedTuple):
    """A point with its whisker (ends equal: none) and what it says when pointed at."""

    x: float
    y: float
    low: float
    high: float
    tip: str


class Marks(NamedTuple):
    """``style``: CSS class of the page. ``joined``: a line through the marks instead of dots."""

    name: str
    style: str
    marks: Sequence[Mark]
    joined: bool = False


class Axis(NamedTuple):
    """``bounds``: its ends; on a logarithmic axis both are positive."""

    name: str
    bounds: tuple[float, float]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 to 1 along the axis; beyond its ends, the end."""
        low, high = self.bounds
        inside = min(max(value, low), high)
        if self.logarithmic:
            low, high, inside = math.log10(low), math.log10(high), math.log10(inside)
        return (inside - low) / ((high - low) or 1.0)

    def ticks(self) -> list[float]:
        """Whole decades of a logarithmic axis, the ends of another."""
        if not self.logarithmic:
            return list(self.bounds)
        first, last = (math.log10(bound) for bound in self.bounds)
        step = max(1, math.ceil((last - first) / 8))
        return [_DECADE**power for power in range(math.ceil(first), math.floor(last) + 1, step)]


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis that holds the positive ones of ``values``: whole decades."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return _DECADE**low, _DECADE ** max(high, low + 1)


def scatter(series: Sequence[Marks], x: Axis, y: Axis, height: int = 320) -> str:
    """Marks, axis names, ticks and a legend above the plot. A mark without a place on a logarithmic axis lies at its
    lower end."""
    top = TOP + 18 * ((len(series) + 1) // 2)
    floor, right = height - BOTTOM, WIDTH - RIGHT

    def across(value: float) -> float:
        return LEFT + x.place(value) * (right - LEFT)

    def up(value: float) -> float:
        return floor - y.place(value) * (floor - top)

    parts = [f'<path class="axis" fill="none" d="M{LEFT} {top}V{floor}H{right}"/>']
    for number, one in enumerate(series):
        parts += _series(one, [(across(m.x), up(m.y), up(m.low), up(m.high)) for m in one.marks])
        at_x, at_y = LEFT + 290 * (number % 2), TOP + 18 * (number // 2)
        parts += [_dot(at_x + 6, at_y + 4, one.style, one.name), text(at_x + 16, at_y + 8, one.name, "start", "tick")]
    parts += [text(across(value), floor + 16, _label(x, value), style="tick") for value in x.ticks()]
    parts += [text(LEFT - 6, up(value) + 4, _label(y, value), "end", "tick") for value in y.ticks()]
    parts += [
        text((LEFT + right) / 2, height - 8, x.name),
        f'<text transform="translate(14 {(top + floor) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y.name)}</text>",
    ]
    return "".join(parts)


def _label(axis: Axis, value: float) -> str:
    return f"1e{round(math.log10(value))}" if axis.logarithmic else f"{value:.3g}"


def _series(one: Marks, places: Sequence[tuple[float, float, float, float]]) -> list[str]:
    if one.joined:
        return [
            f'<polyline class="line {one.style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)}"/>'
        ]
    parts = [
        f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" class="thin"/>'
        for x, _, low, high in places
        if low != high
    ]
    return parts + [_dot(x, y, one.style, mark.tip) for (x, y, _, _), mark in zip(places, one.marks, strict=True)]


def _dot(x: float, y: float, style: str, tip: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{style}"><title>{html.escape(tip)}</title></circle>'
