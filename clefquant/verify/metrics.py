"""What changed in each question, from the logits, in float64.

    p, q      softmax of the BF16 and of the candidate's logits
    KL        sum over options of p (log p - log q), in nats (BF16 ‖ candidate)
    TV        half the sum of |p - q|
    margin    largest minus second largest p
    NLL       -log of the gold option's probability;  Brier  sum of (p - 1[gold])²
    gap       logit of BF16's top option minus that of its runner-up, in the same model

The chosen option is the most probable, at a tie the first in request order, as the release's ``systemone`` answers. A
question with a NaN or infinite logit on either side has NaN in every measure and counts as a disagreement and as a
wrong answer.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clefquant.verify.join import Pairs
from clefquant.verify.segments import FloatArray, IntArray, Segments

BoolArray = npt.NDArray[np.bool_]

CONFIDENT_MARGIN = 0.2
"""A BF16 margin above which a changed answer is a change of a confident answer."""
NEAR_TIE_MARGIN = 0.02
"""A BF16 margin below which the two best options are a tie for practical purposes."""


class Side(NamedTuple):
    """One model's answers to Q questions."""

    top: IntArray  # place of the chosen option in request order
    confidence: FloatArray  # its probability
    correct: BoolArray  # False without gold
    nll: FloatArray  # NaN without gold
    brier: FloatArray
    finite: BoolArray


class Measures(NamedTuple):
    """Arrays over Q questions; NaN where a measure does not apply."""

    counted: BoolArray  # False for questions with one option
    agree: BoolArray
    kl: FloatArray
    tv: FloatArray
    max_dp: FloatArray
    margin: FloatArray  # of BF16
    score_change: FloatArray  # |change of the expected level|, score questions alone
    gap: FloatArray  # of BF16, in logits
    gap_change: FloatArray  # candidate's gap between the same two options minus BF16's
    reference: Side
    candidate: Side
    has_gold: BoolArray


def measure(pairs: Pairs) -> Measures:
    """Compare the two sides question by question."""
    at = Segments(pairs.starts)
    p, log_p, finite_p = _distribution(pairs.reference, at)
    q, log_q, finite_q = _distribution(pairs.candidate, at)
    finite = finite_p & finite_q
    # a term with p = 0 (underflow) is 0; without the product's guard it would be 0 · inf
    terms = np.where(p > 0, p * (log_p - log_q), 0.0)
    difference = np.abs(p - q)
    levels = at.places.astype(np.float64)
    is_score = np.array([one.type == "score" for one in pairs.asked], bool)
    scores = np.abs(at.sum(levels * q) - at.sum(levels * p))
    first, second = _two_best(p, at)
    reference = _side(p, log_p, finite_p, first, pairs.gold, at)
    candidate = _side(q, log_q, finite_q, _two_best(q, at)[0], pairs.gold, at)
    many = at.counts > 1
    gap_p = _gap(pairs.reference, first, second)
    gap_q = _gap(pairs.candidate, first, second)

    def known(values: FloatArray, where: BoolArray = finite) -> FloatArray:
        return np.where(where, values, np.nan)

    return Measures(
        counted=many,
        agree=(reference.top == candidate.top) & finite,
        kl=known(np.maximum(at.sum(terms), 0.0)),  # rounding can leave -1e-17
        tv=known(at.sum(difference) / 2),
        max_dp=known(at.max(difference)),
        margin=known(p[first] - np.where(many, p[second], 0.0), finite_p),
        score_change=known(scores, finite & is_score),
        gap=known(gap_p, finite & many),
        gap_change=known(gap_q - gap_p, finite & many),
        reference=reference,
        candidate=candidate,
        has_gold=pairs.gold >= 0,
    )


def _distribution(logits: FloatArray, at: Segments) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Probabilities [N], their logarithms [N], and which questions [Q] have finite logits alone."""
    finite = np.logical_and.reduceat(np.isfinite(logits), at.starts)
    safe = np.where(finite[at.question], logits, 0.0)
    log_p = at.log_softmax(safe)
    return np.exp(log_p), log_p, finite


def _two_best(p: FloatArray, at: Segments) -> tuple[IntArray, IntArray]:
    """Flat places [Q] of the two most probable options, the earlier first at a tie; equal where there is one option."""
    order = np.lexsort((at.places, -p, at.question))  # by question, then probability, then request order
    return order[at.starts], order[at.starts + (at.counts > 1)]


def _gap(logits: FloatArray, first: IntArray, second: IntArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        gap: FloatArray = logits[first] - logits[second]
    return gap


def _side(p: FloatArray, log_p: FloatArray, finite: BoolArray, first: IntArray, gold: IntArray, at: Segments) -> Side:
    """``first``: flat places [Q] of the chosen options."""
    has_gold = gold >= 0
    place = at.starts + np.maximum(gold, 0)
    squares = at.sum(p * p) - 2 * p[place] + 1
    top = at.places[first]
    return Side(
        top=top,
        confidence=np.where(finite, p[first], np.nan),
        correct=(top == gold) & finite,
        nll=np.where(has_gold & finite, -log_p[place], np.nan),
        brier=np.where(has_gold & finite, squares, np.nan),
        finite=finite,
    )
