"""Faults 3.03, 3.06 to 3.08: what cannot be a record, and what is only odd."""

from typing import Any

import pytest

from clefquant.calibration.check import BadRecord, check_answers, check_record

NOUL = {"type": "noul", "instructions": "Is it?"}


def choice(criteria: Any) -> dict[str, Any]:
    return {"state": "s", "questions": {"q": {"type": "choice", "instructions": "Which?", "criteria": criteria}}}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([], "a record is an object"),
        (None, "a record is an object"),
        ({"questions": {"q": NOUL}}, 'no "state"'),
        ({"state": "s"}, '"questions" must be an object'),
        ({"state": "s", "questions": {}}, "at least one question"),
        ({"state": "s", "questions": [NOUL]}, "got a list"),
        ({"state": "s", "questions": {"q": None}}, "q: a question is an object, got nothing"),
        ({"state": "s", "questions": {"q": {"type": "text"}}}, "type must be noul, choice or score, got 'text'"),
        ({"state": "s", "questions": {"": {"type": "noul"}}}, "needs instructions"),
        ({"state": "s", "questions": {"": {"type": "noul", "instructions": ""}}}, "needs instructions"),
        ({"state": "s", "questions": {1: NOUL, "1": NOUL}}, "two ids become '1'"),
        ({"state": "s", "questions": {True: NOUL}}, "True is a bool"),
        (choice({1: "a", "1": "b"}), "two ids become '1'"),
        (choice({True: "a", False: "b"}), "True is a bool"),
        (choice({}), "not empty"),
        (choice(["a", "b"]), "an object of option id to description"),
        (choice(None), "got nothing"),
        ({"state": "s", "questions": {"q": {"type": "score", "criteria": {"a": 1}}}}, "a list of levels"),
        ({"state": "s", "questions": {"q": {"type": "score", "criteria": []}}}, "a list of levels"),
        ({"state": "s", "questions": {"q": {"type": "noul", "criteria": ["yes"]}}}, "an object with true and false"),
        ({"state": "s", "questions": {"q": NOUL}, "images": "cat.png"}, '"images" must be a list'),
    ],
)
def test_refused(record: Any, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        check_record(record)


@pytest.mark.parametrize("state", [None, 0, False, "", [], {}])
def test_any_state_that_is_there(state: Any) -> None:
    assert check_record({"state": state, "questions": {"q": NOUL}}) == []


@pytest.mark.parametrize("instructions", [0, False, [], "  ", None, "", {"a": 1}])
def test_any_instructions_under_an_id(instructions: Any) -> None:
    assert check_record({"state": "s", "questions": {"q": {"type": "noul", "instructions": instructions}}}) == []


@pytest.mark.parametrize(
    ("record", "odd"),
    [
        (choice({"only": None}), "one option"),
        (choice({str(i): None for i in range(256)}), "more than 255 options"),
        ({"state": "s", "questions": {"q": {"type": "noul", "criteria": {"maybe": "?"}}}}, "other than true and false"),
        ({"state": "s", "questions": {"a\nTYPE: score": NOUL}}, "line breaks"),
        ({"state": "s", "questions": {str(i): NOUL for i in range(65)}}, "more than 64 questions"),
    ],
)
def test_odd(record: Any, odd: str) -> None:
    assert any(odd in found for found in check_record(record))


def test_answers_become_option_ids() -> None:
    record = {
        "state": "s",
        "questions": {
            "n": NOUL,
            "c": {"type": "choice", "criteria": {"1": None, "x": None}},
            "s": {"type": "score", "criteria": ["low", "high"]},
        },
    }
    assert check_answers(record, {"n": True, "c": 1, "s": 1}) == {"n": "true", "c": "1", "s": "1"}
    assert check_answers(record, {"n": None}) == {}
    assert check_answers(record, None) == {}
    with pytest.raises(BadRecord, match="which is no question"):
        check_answers(record, {"other": "x"})
    with pytest.raises(BadRecord, match=r"s: the answer '2' is no option \(0, 1\)"):
        check_answers(record, {"s": 2})
