"""Layouts worth measuring: the sum of single damages is a guide, not the truth, so its runners-up get their chance.

From the frontier at and just below the budget, from swaps of units around the optimum, and from optima of resampled
tables (what the plan would have been had other records been drawn).
"""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, zip_longest

import numpy as np

from clefquant.recipes.formats import BF16
from clefquant.sensitivity.baselines import Sizes, published_greedy
from clefquant.sensitivity.frontier import Frontier
from clefquant.sensitivity.knapsack import Option, Options, least_loss
from clefquant.sensitivity.table import SensitivityTable

Chosen = tuple[str, ...]
#: Single changes considered for pairs; more would be ranked and thrown away.
_MOVES = 48


def candidates(
    table: SensitivityTable, options: Sequence[Options], frontier: Frontier, start: Chosen, sizes: Sizes,
    max_size: int, count: int, max_formats: int | None = None, seed: int = 0,
) -> list[dict[str, str]]:  # fmt: skip
    """Up to ``count`` different layouts within ``max_size``, ``start`` (the optimum of the prediction) first.

    ``sizes``: what every unit takes in every format. The published method's layout is among them where it is
    possible, so that the choice is never worse on the choosing part.
    """
    names = [unit.name for unit in table.units]
    greedy = published_greedy(table, max_size, sizes=sizes)
    allowed = greedy is not None and all(greedy[name] in unit for name, unit in zip(names, options, strict=True))
    known = [tuple(greedy[name] for name in names)] if greedy is not None and allowed else []
    near = (point.formats for point in reversed(frontier.points) if point.size <= max_size)
    streams = (near, swaps(options, start, max_size), resampled(table, options, max_size, max_formats, count, seed))
    mixed = (chosen for row in zip_longest(*streams) for chosen in row if chosen is not None)
    found: dict[Chosen, None] = {}
    for chosen in chain([start], known, mixed):
        if max_formats is None or len(set(chosen) - {BF16.name}) <= max_formats:
            found.setdefault(chosen)
        if len(found) == count:
            break
    return [dict(zip(names, chosen, strict=True)) for chosen in found]


def swaps(options: Sequence[Options], start: Chosen, max_size: int) -> Iterator[Chosen]:
    """Layouts one or two changes away from ``start`` within ``max_size``, the least predicted loss first."""
    moves = []
    for number, unit in enumerate(options):
        now = unit[start[number]]
        moves += [
            (o.loss - now.loss, o.size - now.size, number, name) for name, o in unit.items() if name != start[number]
        ]
    spare = max_size - sum(unit[name].size for unit, name in zip(options, start, strict=True))
    # small changes, whichever way: the ones at the boundary between formats
    moves = sorted(moves, key=lambda move: abs(move[0]))[:_MOVES]
    single = [(loss, [(number, name)]) for loss, size, number, name in moves if size <= spare]
    double = [
        (a[0] + b[0], [(a[2], a[3]), (b[2], b[3])])
        for a, b in combinations(moves, 2)
        if a[2] != b[2] and a[1] + b[1] <= spare
    ]
    for _, changes in sorted(single + double, key=lambda change: change[0]):
        changed = list(start)
        for number, name in changes:
            changed[number] = name
        yield tuple(changed)


def resampled(
    table: SensitivityTable, options: Sequence[Options], max_size: int, max_formats: int | None, count: int, seed: int
) -> Iterator[Chosen]:
    """Optima of tables whose records are drawn anew with replacement."""
    generator = np.random.default_rng(seed)
    questions = np.array(table.questions, dtype=np.float64)
    sums = {(e.unit, e.format): table.record_sums(e) for e in table.entries if not e.failed_logits}
    for _ in range(count):
        weights = np.bincount(generator.integers(len(questions), size=len(questions)), minlength=len(questions))
        total = float(weights @ questions)
        if not total:
            continue
        drawn: list[Options] = [
            {
                n: Option(o.size, 0.0 if n == BF16.name else float(weights @ sums[unit.name, n]) / total)
                for n, o in able.items()
            }
            for unit, able in zip(table.units, options, strict=True)
        ]
        if (chosen := least_loss(drawn, max_size, max_formats)) is not None:
            yield tuple(chosen)
