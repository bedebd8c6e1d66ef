"""Rows of the report: the figures of all questions, and of each group, type, length and margin bucket."""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from clefquant.verify.bootstrap import intervals
from clefquant.verify.join import TYPES, Pairs
from clefquant.verify.metrics import BoolArray, Measures
from clefquant.verify.totals import columns, figures, per_record

LENGTH_EDGES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper ends of the prompt-length buckets, in tokens."""
MARGIN_EDGES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper ends of the BF16-margin buckets."""
COUNTS = (
    "questions", "one_option", "nan", "nan_reference", "near_ties", "confident", "confident_flips", "gold", "scores",
)  # fmt: skip

Row = dict[str, Any]


def row(name: str, pairs: Pairs, m: Measures, where: BoolArray, seed: int, table: str) -> Row:
    """One row over the questions ``where``: counts, and each figure as ``{"value", "low", "high"}``; None when
    undefined."""
    numbers: dict[str, int] = {}
    record = np.array(
        [numbers.setdefault(one.record, len(numbers)) for one, taken in zip(pairs.asked, where, strict=True) if taken]
    )
    names, sums = per_record({key: values[where] for key, values in columns(m).items()}, record)
    total = sums.sum(axis=0)
    bounds = intervals(names, sums, seed, f"{table}/{name}")
    shown: dict[str, Any] = {
        figure: _figure(float(value), bounds[figure]) for figure, value in figures(names, total).items()
    }
    kl = m.kl[where & m.counted & ~np.isnan(m.kl)]
    counts = {key: int(total[names.index(key)]) for key in COUNTS}
    quantiles = {key: _quantile(kl, share) for key, share in (("kl_median", 0.5), ("kl_p99", 0.99), ("kl_max", 1.0))}
    return {"name": name, "records": len(numbers), **counts, "flips": _flips(m, where), **shown, **quantiles}


def _figure(value: float, bounds: tuple[float, float]) -> dict[str, float] | None:
    if math.isnan(value):
        return None
    return {"value": value, "low": bounds[0], "high": bounds[1]}


def _quantile(values: Any, share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


def _flips(m: Measures, where: BoolArray) -> int:
    return int((where & m.counted & ~m.agree).sum())


def all_tables(pairs: Pairs, m: Measures, seed: int) -> dict[str, list[Row]]:
    """The five tables; a bucket that holds no question is left out."""
    groups = np.array([one.group for one in pairs.asked])
    types = np.array([one.type for one in pairs.asked])
    tokens = np.array([one.tokens for one in pairs.asked])

    def table(name: str, labels: Iterable[str], chosen: Callable[[str], BoolArray]) -> list[Row]:
        return [row(label, pairs, m, where, seed, name) for label in labels if (where := chosen(label)).any()]

    lengths = _buckets(LENGTH_EDGES, tokens.astype(np.float64), lambda edge: f"{int(edge):,}")
    margins = _buckets(MARGIN_EDGES, np.where(m.counted, m.margin, np.nan), lambda edge: f"{edge:g}")
    result = {
        "all": [row("All", pairs, m, np.ones(len(groups), bool), seed, "all")],
        "groups": table("groups", sorted(set(groups.tolist())), lambda label: groups == label),
        "types": table("types", TYPES, lambda label: types == label),
        "lengths": table("lengths", lengths, lengths.__getitem__),
        "margins": table("margins", margins, margins.__getitem__),
    }
    predicted = predicted_flips(m)
    for one in result["margins"]:
        one["flips_predicted"] = float(predicted[margins[one["name"]]].sum())
    result["all"][0]["flips_predicted"] = float(predicted.sum())
    return result


def _buckets(edges: tuple[float, ...], values: Any, spell: Callable[[float], str]) -> dict[str, BoolArray]:
    """Label to questions: ``≤ first edge``, ``a–b`` (above a, at most b), and ``> last edge``."""
    found = {f"≤ {spell(edges[0])}": values <= edges[0]}
    for low, high in pairwise(edges):
        found[f"{spell(low)}–{spell(high)}"] = (values > low) & (values <= high)
    found[f"> {spell(edges[-1])}"] = values > edges[-1]
    return found


def predicted_flips(m: Measures) -> Any:
    """Probability [Q] that a question flips, were the change of the gap independent of the gap itself.

    For a gap g between BF16's two best options, the share of all questions whose gap changed by less than -g. Far
    more flips than predicted among large margins mean that confident answers move more than others: a fault, not
    rounding noise.
    """
    known = m.counted & ~np.isnan(m.gap_change)
    if not known.any():
        return np.zeros(len(m.gap))
    changes = np.sort(m.gap_change[known])
    share = np.searchsorted(changes, -np.nan_to_num(m.gap), side="left") / len(changes)
    return np.where(known, share, 0.0)
