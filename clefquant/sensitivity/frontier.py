"""The whole Pareto frontier of size against predicted loss, by dominance: unit after unit, states that another beats
are dropped.

After each unit a state is the best loss at its exact size (Nemhauser and Ullmann 1969). Beyond
``max_states`` states, the best of each equal slice of sizes is kept: every point then is a real layout, but another
could lie a little below it.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clefquant.recipes.formats import BF16
from clefquant.sensitivity.knapsack import Options

MAX_STATES = 20_000


class Point(NamedTuple):
    """A layout that none beats in both size and loss; ``formats``: one per unit."""

    size: int
    loss: float
    formats: tuple[str, ...]


class Frontier(NamedTuple):
    """Points from smallest to largest; ``exact``: no state was left out."""

    points: tuple[Point, ...]
    exact: bool


def pareto_frontier(units: Sequence[Options], max_formats: int | None = None, max_states: int = MAX_STATES) -> Frontier:
    """Frontier of all choices of one option per unit, with at most ``max_formats`` formats beside bf16."""
    names = sorted({name for unit in units for name in unit} - {BF16.name})
    if max_formats is None or max_formats >= len(names):
        return _frontier(units, max_states)
    found = []
    for kept in combinations(names, max_formats):
        allowed = [{name: o for name, o in unit.items() if name in (*kept, BF16.name)} for unit in units]
        if all(allowed):
            found.append(_frontier(allowed, max_states))
    points = sorted((point for part in found for point in part.points), key=lambda point: (point.size, point.loss))
    best: list[Point] = []
    for point in points:
        if not best or point.loss < best[-1].loss:
            best.append(point)
    return Frontier(tuple(best), all(part.exact for part in found))


def _frontier(units: Sequence[Options], max_states: int) -> Frontier:
    sizes, losses = np.zeros(1, dtype=np.int64), np.zeros(1)
    trail: list[NDArray[np.int64]] = []  # per unit: previous state * number of options + option
    exact = True
    for unit in units:
        options = list(unit.values())
        added: NDArray[np.int64] = (sizes[:, None] + np.array([o.size for o in options])).ravel()
        total: NDArray[np.float64] = (losses[:, None] + [o.loss for o in options]).ravel()
        order = np.lexsort((total, added))
        kept = order[_improves(total[order])]
        if len(kept) > max_states:
            exact = False
            kept = _thin(kept, added[kept], max_states)
        trail.append(kept)
        sizes, losses = added[kept], total[kept]
    return Frontier(tuple(_points(units, sizes, losses, trail)), exact)


def _improves(losses: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which losses are below all before them."""
    before = np.concatenate([[np.inf], np.minimum.accumulate(losses)[:-1]])
    return losses < before


def _thin(kept: NDArray[np.int64], sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The last (least loss) state of each of ``count`` equal slices of sizes, and the smallest state."""
    slices = (sizes - sizes[0]) * (count - 1) // max(int(sizes[-1] - sizes[0]), 1)
    last = np.append(slices[1:] != slices[:-1], True)
    last[0] = True
    thinned: NDArray[np.int64] = kept[last]
    return thinned


def _points(
    units: Sequence[Options], sizes: NDArray[np.int64], losses: NDArray[np.float64], trail: Sequence[NDArray[np.int64]]
) -> list[Point]:
    state = np.arange(len(sizes))
    columns: list[list[str]] = []
    for unit, kept in zip(reversed(units), reversed(trail), strict=True):
        names = list(unit)
        columns.append([names[index] for index in kept[state] % len(names)])
        state = kept[state] // len(names)
    rows = zip(*reversed(columns), strict=True)
    return [Point(int(size), float(loss), tuple(row)) for size, loss, row in zip(sizes, losses, rows, strict=True)]
