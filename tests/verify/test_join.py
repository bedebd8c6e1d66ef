"""Pairs are made by record, question and option; anything left over stops the run."""

import numpy as np
import pytest

from clefquant.errors import CheckFailed, InputError
from clefquant.verify.answers import Answer, failed, read_answers, write_answers
from clefquant.verify.join import Asked, join, request_order


def asked(*keys, order=("z", "a")):
    return [Asked(record, question, "choice", "g", 5, order, "a") for record, question in keys]


def answer(record, question, options=("a", "z"), logits=(1.0, 2.0)):
    return Answer(record, question, tuple(options), np.array(logits, np.float32))


KEYS = (("r1", "q1"), ("r2", "q1"))


def test_options_come_in_request_order_whatever_each_side_sends():
    pairs = join(
        asked(*KEYS), [answer(*key) for key in KEYS], [answer(*key, ("z", "a"), (5.0, 6.0)) for key in reversed(KEYS)]
    )
    assert pairs.reference.tolist() == [2.0, 1.0, 2.0, 1.0]
    assert pairs.candidate.tolist() == [5.0, 6.0, 5.0, 6.0]
    assert pairs.gold.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ([answer("r1", "q1")], "lacks 1 of 2 questions, first record 'r2'"),
        ([answer(*key) for key in (*KEYS, ("r3", "q1"))], "evaluation set does not have"),
        ([answer("r1", "q1"), answer("r2", "q1"), answer("r1", "q1")], "more than once"),
        ([answer("r1", "q1"), answer("r2", "q1", ("a", "b"))], "has the options a, b"),
        ([answer("r1", "q1"), answer("r2", "q1", ("a", "a"))], "has the options a, a"),
    ],
)
def test_anything_unmatched_is_an_error(candidate, message):
    with pytest.raises(CheckFailed, match=message):
        join(asked(*KEYS), [answer(*key) for key in KEYS], candidate)


def test_gold_that_is_no_option():
    with pytest.raises(CheckFailed, match="gold answer 'a' is none of its options"):
        join(asked(("r1", "q1"), order=("x", "y")), [answer("r1", "q1", "xy")], [answer("r1", "q1", "xy")])


def test_request_order_is_not_the_encoder_s():
    assert request_order({"type": "choice", "criteria": {"10": 1, "2": 1, "1": 1}}) == ("10", "2", "1")
    assert request_order({"type": "noul"}) == ("true", "false")
    assert request_order({"type": "score", "criteria": ["a", "b"]}) == ("0", "1")


def test_answers_survive_parquet(tmp_path):
    rows = [answer("r1", "q1"), failed("r2", "q1", ("a", "z"), "no reply")]
    again = [answer("r1", "q1", logits=(1.5, 2.5))]
    write_answers(tmp_path / "a.parquet", rows, {"model": "m"}, {"logits_again": again})
    found = read_answers(tmp_path / "a.parquet")
    assert found.head["model"] == "m"
    assert [one.key for one in found.answers] == list(KEYS)
    np.testing.assert_array_equal(found.answers[0].logits, rows[0].logits)
    assert np.isnan(found.answers[1].logits).all()
    assert found.answers[1].error == "no reply"
    assert [one.logits.tolist() for one in found.variants["logits_again"]] == [[1.5, 2.5]]


def test_another_parquet_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="holds no option logits"):
        read_answers(tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_text("no")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        read_answers(tmp_path / "y.parquet")
    write_answers(tmp_path / "new.parquet", [], {"schema_version": 99})
    with pytest.raises(InputError, match="schema_version 99"):
        read_answers(tmp_path / "new.parquet")
