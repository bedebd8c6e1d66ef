"""How far decisions moved: per-question measures from two sets of option logits, and their means with standard errors.

All in float64 from float32 logits. p: softmax of the reference (the unchanged model), q: of the changed one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clefquant.verify.segments import FloatArray as Floats
from clefquant.verify.segments import IntArray as Integers
from clefquant.verify.segments import Segments

SCORE_TYPE = 2


class QuestionMetrics(NamedTuple):
    """One value per question.

    ``kl``: KL(p ‖ q) in nats. ``tv``: total variation, half the sum of |p - q|. ``flip``: 1 where the first largest
    option differs. ``margin_flip``: a flip counted by the margin p1 - p2 that was lost. ``score_shift``: |expected
    level under q - under p|, NaN for questions that are no score. A question with one option cannot move and is NaN
    in all of them.
    """

    kl: Floats
    tv: Floats
    flip: Floats
    margin_flip: Floats
    score_shift: Floats


class Mean(NamedTuple):
    """A mean over questions and its standard error over records (None from fewer than two records)."""

    value: float
    error: float | None
    questions: int


def question_metrics(reference: Floats, changed: Floats, sizes: Integers, types: Integers) -> QuestionMetrics:
    """Metrics of questions whose flat logits [N] follow one another; ``sizes``, ``types``: options and type of each."""
    at = Segments.of_sizes(sizes)
    log_p, log_q = at.log_softmax(reference), at.log_softmax(changed)
    p, q = np.exp(log_p), np.exp(log_q)
    # KL of nearly equal distributions rounds to a little below zero
    kl = np.maximum(at.sum(p * (log_p - log_q)), 0.0)
    tv = 0.5 * at.sum(np.abs(p - q))
    top_p, top_q = _first_top(reference, at), _first_top(changed, at)
    flip = (top_p != top_q).astype(np.float64)
    others = p.copy()
    others[top_p] = -1.0
    margin = at.max(p) - at.max(others)
    shift = np.abs(at.sum(at.places * (q - p)))
    shift[types != SCORE_TYPE] = np.nan
    found = QuestionMetrics(kl, tv, flip, flip * margin, shift)
    for values in found:
        values[sizes < 2] = np.nan
    return found


def mean_over_records(values: Floats, records: Integers) -> Mean:
    """Mean of the values that are not NaN; ``records``: the record each belongs to.

    Questions of one record move together, so the error is that of a ratio of sums over records:
    sqrt(R / (R - 1) * sum_r (s_r - m n_r)^2) / sum_r n_r.
    """
    kept = ~np.isnan(values)
    count = int(kept.sum())
    if count == 0:
        return Mean(float("nan"), None, 0)
    _, owner = np.unique(records[kept], return_inverse=True)
    sums, sizes = np.bincount(owner, values[kept]), np.bincount(owner)
    mean = float(sums.sum() / count)
    if len(sums) < 2:
        return Mean(mean, None, count)
    spread = float(np.square(sums - mean * sizes).sum()) * len(sums) / (len(sums) - 1)
    return Mean(mean, float(np.sqrt(spread)) / count, count)


def mean_of_sums(sums: Floats, counts: Sequence[int]) -> Mean:
    """:func:`mean_over_records` from each record's sum over its ``counts`` questions."""
    # a sum over n questions counts as n values of their mean
    sizes = np.array(counts)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return mean_over_records(np.repeat(sums / np.maximum(sizes, 1), sizes), owners)


def _first_top(logits: Floats, at: Segments) -> Integers:
    """Flat index of each question's first largest option."""
    index = np.where(logits == at.max(logits)[at.question], np.arange(len(logits)), len(logits))
    first: Integers = np.minimum.reduceat(index, at.starts)
    return first
