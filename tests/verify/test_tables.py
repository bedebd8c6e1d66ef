"""Aggregates, intervals and buckets."""

import numpy as np
import pytest

from clefquant.verify.join import Asked, Pairs
from clefquant.verify.metrics import measure
from clefquant.verify.tables import all_tables, predicted_flips, row
from clefquant.verify.totals import ECE_BINS


def random_pairs(questions=600, records=200, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 6, questions)
    starts = np.concatenate([[0], np.cumsum(counts)])
    reference = rng.normal(0, 2, starts[-1])
    asked = [
        Asked(
            f"r{n % records}",
            f"q{n}",
            ("noul", "choice", "score")[n % 3],
            "ab"[n % 2],
            int(rng.integers(50, 5000)),
            tuple("abcdef"[:count]),
            None,
        )
        for n, count in enumerate(counts)
    ]
    gold = np.array([rng.integers(count) for count in counts])
    return Pairs(asked, starts, reference, reference + rng.normal(0, noise, starts[-1]), gold)


def whole(pairs, seed=0):
    m = measure(pairs)
    return row("All", pairs, m, np.ones(len(pairs.asked), bool), seed, "all"), m


def test_row_is_the_mean_of_its_questions():
    found, m = whole(random_pairs())
    assert found["kl"]["value"] == pytest.approx(m.kl.mean())
    assert found["agreement"]["value"] == pytest.approx(m.agree.mean())
    assert found["accuracy_change"]["value"] == pytest.approx(m.candidate.correct.mean() - m.reference.correct.mean())
    assert found["kl_max"] == m.kl.max()
    assert found["flips"] == (~m.agree).sum()
    bins = np.minimum((m.candidate.confidence * ECE_BINS).astype(int), ECE_BINS - 1)
    ece = sum(
        abs((m.candidate.confidence - m.candidate.correct)[bins == number].mean()) * (bins == number).mean()
        for number in range(ECE_BINS)
        if (bins == number).any()
    )
    assert found["ece"]["value"] == pytest.approx(ece)


def test_interval_is_that_of_a_plain_bootstrap_over_records():
    pairs = random_pairs()
    found, m = whole(pairs)
    rng = np.random.default_rng(99)
    by_record = [np.flatnonzero([one.record == f"r{n}" for one in pairs.asked]) for n in range(200)]
    draws = [m.kl[np.concatenate([by_record[n] for n in rng.integers(0, 200, 200)])].mean() for _ in range(2000)]
    low, high = np.quantile(draws, [0.025, 0.975])
    width = high - low
    assert found["kl"]["low"] == pytest.approx(low, abs=0.1 * width)
    assert found["kl"]["high"] == pytest.approx(high, abs=0.1 * width)


def test_intervals_repeat_with_the_seed_and_move_with_it():
    pairs = random_pairs()
    assert whole(pairs)[0] == whole(pairs)[0]
    assert whole(pairs)[0]["kl"] != whole(pairs, seed=1)[0]["kl"]


def test_no_difference_in_few_records_is_no_certainty():
    pairs = random_pairs(questions=60, records=30, noise=0.0)
    found, _ = whole(pairs)
    assert found["agreement"] == {"value": 1.0, "low": pytest.approx(0.025 ** (1 / 30)), "high": 1.0}
    assert found["confident_flip_rate"]["high"] == pytest.approx(1 - 0.025 ** (1 / 30))


def test_a_bound_counts_the_records_that_have_the_figure(pairs_of):
    # 3 of 8 records have gold, and BF16 is sure of 2
    logits = [[9.0, 0.0]] * 2 + [[0.1, 0.0]] * 6
    found, _ = whole(pairs_of(logits, logits, gold=[0, 0, 0] + [-1] * 5))
    assert found["agreement"]["low"] == pytest.approx(0.025 ** (1 / 8))
    assert found["accuracy"]["low"] == found["accuracy_reference"]["low"] == pytest.approx(0.025 ** (1 / 3))
    assert found["confident_flip_rate"]["high"] == pytest.approx(1 - 0.025 ** (1 / 2))
    without, _ = whole(pairs_of(logits, logits, gold=[-1] * 8))
    assert without["accuracy"] is None


def test_buckets_cover_every_question_once():
    pairs = random_pairs()
    tables = all_tables(pairs, measure(pairs), 0)
    for name in ("groups", "types", "lengths", "margins"):
        assert sum(one["questions"] for one in tables[name]) == 600, name
    assert [one["name"] for one in tables["types"]] == ["noul", "choice", "score"]
    assert tables["types"][0]["score_change"] is None


def test_nan_and_one_option_are_counted_apart(pairs_of):
    pairs = pairs_of([[1.0], [2.0, 0.0], [2.0, 0.0]], [[1.0], [np.nan, 0.0], [2.0, 0.0]], gold=[0, 0, 0])
    found, _ = whole(pairs)
    assert (found["questions"], found["one_option"], found["nan"], found["flips"]) == (2, 1, 1, 1)
    assert found["agreement"]["value"] == 0.5
    assert found["accuracy"]["value"] == 0.5
    assert found["kl"]["value"] == 0
    assert found["confident_flips"] == 1


def test_predicted_flips_by_hand(pairs_of):
    # gaps 1 and 3, both change by -2: one flip predicted for the first, none for the second
    m = measure(pairs_of([[1.0, 0.0], [3.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]]))
    assert predicted_flips(m).tolist() == [1.0, 0.0]
