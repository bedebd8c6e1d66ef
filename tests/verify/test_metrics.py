"""Measures against worked cases and against scipy and scikit-learn."""

import math

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, log_loss

from clefquant.verify.metrics import measure
from clefquant.verify.paired import mcnemar, paired_accuracy


def logs(*shares):
    return [math.log(share) for share in shares]


def test_worked_question(pairs_of):
    # .7 ln(.7/.6) + .2 ln(.2/.3) + 0 = 0.107905 - 0.081093
    m = measure(pairs_of([logs(0.7, 0.2, 0.1)], [logs(0.6, 0.3, 0.1)], ["score"], [0]))
    assert m.kl[0] == pytest.approx(0.026812, abs=5e-7)
    assert m.tv[0] == pytest.approx(0.1)
    assert m.max_dp[0] == pytest.approx(0.1)
    assert m.margin[0] == pytest.approx(0.5)
    assert m.score_change[0] == pytest.approx(0.1)  # expected level 0.4 becomes 0.5
    assert m.agree[0]
    assert m.reference.nll[0] == pytest.approx(-math.log(0.7))
    assert m.candidate.brier[0] == pytest.approx(0.4**2 + 0.3**2 + 0.1**2)
    assert m.gap[0] == pytest.approx(math.log(0.7 / 0.2))
    assert m.gap_change[0] == pytest.approx(math.log(0.6 / 0.3) - math.log(0.7 / 0.2))


def test_tie_goes_to_the_first_in_request_order(pairs_of):
    m = measure(pairs_of([[1.0, 1.0, 0.0]], [[0.0, 1.0, 1.0]]))
    assert (m.reference.top[0], m.candidate.top[0]) == (0, 1)
    assert not m.agree[0]
    assert m.margin[0] == 0


def test_nan_is_a_disagreement_and_a_wrong_answer(pairs_of):
    m = measure(pairs_of([[1.0, 0.0], [1.0, 0.0]], [[np.nan, 0.0], [np.inf, 0.0]], gold=[0, 0]))
    assert not m.agree.any()
    assert not m.candidate.correct.any()
    assert m.reference.correct.all()
    assert np.isnan(m.kl).all()
    assert not np.isnan(m.margin).any()  # BF16's own margin is known


def test_one_option_is_not_counted(pairs_of):
    m = measure(pairs_of([[3.0], [1.0, 0.0]], [[-2.0], [1.0, 0.0]]))
    assert m.counted.tolist() == [False, True]
    for gap in (m.gap, m.gap_change):  # there is no second option to be ahead of
        assert np.isnan(gap).tolist() == [True, False]
    assert m.margin[0] == 1


def test_underflow_is_no_nan(pairs_of):
    m = measure(pairs_of([[0.0, -2000.0]], [[0.0, -1000.0]]))
    assert m.kl[0] == 0
    assert np.isfinite(m.tv[0])


def test_ten_thousand_random_questions_against_scipy_and_sklearn(pairs_of):
    rng = np.random.default_rng(3)
    counts = rng.integers(2, 12, 10_000)
    reference = [rng.normal(0, 3, count) for count in counts]
    candidate = [one + rng.normal(0, 0.3, len(one)) for one in reference]
    gold = [int(rng.integers(count)) for count in counts]
    m = measure(pairs_of(reference, candidate, ["score"] * len(counts), gold))
    p, q = [softmax(one) for one in reference], [softmax(one) for one in candidate]
    np.testing.assert_allclose(m.kl, [entropy(a, b) for a, b in zip(p, q, strict=True)], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(m.tv, [np.abs(a - b).sum() / 2 for a, b in zip(p, q, strict=True)], atol=1e-14)
    np.testing.assert_allclose(m.max_dp, [np.abs(a - b).max() for a, b in zip(p, q, strict=True)], atol=1e-14)
    tops = [int(b.argmax()) for b in q]
    assert m.candidate.top.tolist() == tops
    assert m.agree.mean() == np.mean([a.argmax() == b.argmax() for a, b in zip(p, q, strict=True)])
    assert m.candidate.correct.mean() == accuracy_score(gold, tops)
    wide = np.array([np.pad(b, (0, 12 - len(b))) for b in q])
    assert m.candidate.nll.mean() == pytest.approx(log_loss(gold, wide, labels=list(range(12))), rel=1e-9)
    onehot = np.eye(12)[gold]
    assert m.candidate.brier.mean() == pytest.approx(((wide - onehot) ** 2).sum(axis=1).mean(), rel=1e-12)
    levels = np.arange(12)
    expected = [abs(levels[: len(a)] @ (b - a)) for a, b in zip(p, q, strict=True)]
    np.testing.assert_allclose(m.score_change, expected, atol=1e-12)
    ordered = [np.sort(a)[::-1] for a in p]
    np.testing.assert_allclose(m.margin, [a[0] - a[1] for a in ordered], atol=1e-14)


def test_mcnemar_by_hand():
    assert mcnemar(1, 9) == pytest.approx(2 * (1 + 10) / 1024)
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 0) == 1.0


def test_paired_accuracy_counts(pairs_of):
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    m = measure(pairs_of([right, right, wrong, wrong], [right, wrong, right, right], gold=[0, 0, 0, 0]))
    assert paired_accuracy(m)[:2] == (1, 2)
