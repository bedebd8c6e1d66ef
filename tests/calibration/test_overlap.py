"""What counts as the same content."""

from typing import Any

import pytest

from clefquant.calibration.overlap import content_keys
from clefquant.calibration.report import histogram
from clefquant.calibration.statistics import quantile

ONE = {"q": {"type": "noul", "instructions": "One?"}}
TWO = {"q": {"type": "noul", "instructions": "Two?"}}


def keys(state: Any, questions: Any = ONE) -> tuple[str, ...]:
    return content_keys({"state": state, "questions": questions}, [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello  there\n", "hello there"),
        ("ＡＢＣ ﬁne", "abc fine"),
        ({"text": "Hi"}, "hi"),
        ([{"message": "Hi"}], "hi"),
        ({"b": 1, "a": "X"}, {"a": "x", "b": 1}),
    ],
)
def test_the_same(one: Any, other: Any) -> None:
    assert keys(one) == keys(other, TWO)


@pytest.mark.parametrize(
    ("one", "other"), [("a b", "ab"), ({"a": 1, "b": 2}, {"a": 2, "b": 1}), ([1, 2], [2, 1]), (1, True), (1, "1x")]
)
def test_not_the_same(one: Any, other: Any) -> None:
    assert keys(one) != keys(other)


@pytest.mark.parametrize("state", ["", "  ", None, {}, []])
def test_a_state_that_says_nothing_is_told_by_its_questions(state: Any) -> None:
    assert keys(state) == keys(state)
    assert keys(state) != keys(state, TWO)


def test_pictures_alone_count() -> None:
    assert content_keys({"state": "a", "questions": ONE}, ["p"]) == content_keys(
        {"state": "b", "questions": TWO}, ["p"]
    )
    assert len(content_keys({"state": "a", "questions": ONE}, ["p", "q", "p"])) == 2


def test_histogram_and_quantiles() -> None:
    lengths = {100: 1, 128: 2, 129: 3, 2000: 4}
    assert histogram(lengths) == [
        {"up_to": 128, "records": 3}, {"up_to": 256, "records": 3}, {"up_to": 512, "records": 0},
        {"up_to": 1024, "records": 0}, {"up_to": 2048, "records": 4},
    ]  # fmt: skip
    assert (quantile(lengths, 0.5), quantile(lengths, 0.95), quantile({}, 0.5)) == (129, 2000, 0)
