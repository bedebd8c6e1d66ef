"""How far decisions moved: per-question measures from two sets of option logits, and their means with standard errors.

All in float64 from float32 logits. p: softmax of the reference (the unchanged model), q: of the changed one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
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
    counts, starts = sizes, np.cumsum(sizes) - sizes
    log_p, log_q = _log_softmax(reference, starts, counts), _log_softmax(changed, starts, counts)
    p, q = np.exp(log_p), np.exp(log_q)
    levels = np.arange(len(p)) - np.repeat(starts, counts)
    # KL of nearly equal distributions rounds to a little below zero
    kl = np.maximum(np.add.reduceat(p * (log_p - log_q), starts), 0.0)
    tv = 0.5 * np.add.reduceat(np.abs(p - q), starts)
    top_p, top_q = _first_top(reference, starts, counts), _first_top(changed, starts, counts)
    flip = (top_p != top_q).astype(np.float64)
    largest = np.maximum.reduceat(p, starts)
    others = p.copy()
    others[top_p] = -1.0
    margin = largest - np.maximum.reduceat(others, starts)
    shift = np.abs(np.add.reduceat(levels * (q - p), starts))
    shift[types != SCORE_TYPE] = np.nan
    found = QuestionMetrics(kl, tv, flip, flip * margin, shift)
    for values in found:
        values[counts < 2] = np.nan
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


def _log_softmax(logits: Floats, starts: Integers, counts: Integers) -> Floats:
    shifted = logits - np.repeat(np.maximum.reduceat(logits, starts), counts)
    total: Floats = np.log(np.add.reduceat(np.exp(shifted), starts))
    return np.asarray(shifted - np.repeat(total, counts))


def _first_top(logits: Floats, starts: Integers, counts: Integers) -> Integers:
    """Flat index of each question's first largest option."""
    largest = np.repeat(np.maximum.reduceat(logits, starts), counts)
    index = np.where(logits == largest, np.arange(len(logits)), len(logits))
    first: Integers = np.minimum.reduceat(index, starts)
    return first
