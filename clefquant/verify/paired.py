"""McNemar's paired test: is one model right more often on the questions where the two differ?"""

from typing import NamedTuple

from clefquant.verify.metrics import Measures


class Paired(NamedTuple):
    """``lost``: right in BF16, wrong in the candidate; ``won``: the other way round; ``p_value``: exact, two-sided."""

    lost: int
    won: int
    p_value: float


def mcnemar(lost: int, won: int) -> float:
    """Exact two-sided p-value: a fair coin for every question that only one model got right. 1.0 without any.

    Questions are taken as independent; the bootstrap interval of the difference, over records, does not need that.
    """
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + won, 0.5).pvalue) if lost + won else 1.0


def paired_accuracy(m: Measures) -> Paired:
    """The test over all counted questions with a gold answer."""
    judged = m.has_gold & m.counted
    lost = int((judged & m.reference.correct & ~m.candidate.correct).sum())
    won = int((judged & ~m.reference.correct & m.candidate.correct).sum())
    return Paired(lost, won, mcnemar(lost, won))
