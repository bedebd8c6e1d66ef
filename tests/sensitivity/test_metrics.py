import math

import numpy as np
import pytest

from clefquant.sensitivity.metrics import mean_over_records, question_metrics

SIZES, TYPES = np.array([2, 3, 1]), np.array([0, 2, 1])


def logits(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def test_metrics_of_known_distributions():
    p, q = logits(0.5, 0.5, 0.2, 0.2, 0.6, 1.0), logits(0.25, 0.75, 0.2, 0.6, 0.2, 1.0)
    found = question_metrics(p + 3.0, q, SIZES, TYPES)  # a constant changes nothing
    assert found.kl[:2] == pytest.approx(
        [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.2 * math.log(1 / 3) + 0.6 * math.log(3)]
    )
    assert found.tv[:2] == pytest.approx([0.25, 0.4])
    assert found.flip[:2].tolist() == [1.0, 1.0]  # a tie goes to the first option
    assert found.margin_flip[:2] == pytest.approx([0.0, 0.4])
    assert found.score_shift[1] == pytest.approx(1.4 - 1.0)
    assert math.isnan(found.score_shift[0])
    assert all(math.isnan(values[2]) for values in found)  # one option cannot move


def test_equal_logits_move_nothing():
    p = np.array([1.0, 2.0, -3.0, 0.0, 5.0, 0.0])
    found = question_metrics(p, p, SIZES, TYPES)
    assert [values[1] for values in found] == [0.0] * 5


def test_mean_and_error_over_records():
    values, owners = np.array([1.0, 3.0, 5.0, np.nan]), np.array([0, 0, 1, 2])
    mean = mean_over_records(values, owners)
    # sums 4 and 5 over 2 and 1 questions; deviations 4 - 2*3 and 5 - 3
    assert mean == (3.0, pytest.approx(math.sqrt(2 * (4 + 4)) / 3), 3)
    assert mean_over_records(values[:2], owners[:2]) == (2.0, None, 2)
    assert mean_over_records(np.array([np.nan]), np.array([0])).questions == 0


def test_error_equals_the_ordinary_one_for_a_question_a_record():
    values = np.random.default_rng(0).exponential(size=50)
    mean = mean_over_records(values, np.arange(50))
    assert mean.error == pytest.approx(values.std(ddof=1) / math.sqrt(50))
