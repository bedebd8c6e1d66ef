"""Requests that are refused, with the words that name the fault, and those that must pass."""

from typing import Any

import pytest

from clef_vllm.requests import UNLIMITED, Limits, RequestError, check_request

NOUL = {"type": "noul", "instructions": "Is it so?"}
CHOICE = {"type": "choice", "criteria": {"b": None, "a": "first"}}


def request(**questions: Any) -> dict[str, Any]:
    return {"model": "m", "state": "s", "questions": questions or {"q": NOUL}}


@pytest.mark.parametrize(
    "body",
    [
        request(), request(q=CHOICE), {**request(), "state": None}, {**request(), "unknown": 1},
        request(q={"type": "score", "criteria": ["low", "high"]}), request(q={**NOUL, "criteria": {"true": None}}),
        request(q={"type": "choice", "criteria": {"only": None}}), request(**{f"q{i}": NOUL for i in range(64)}),
        request(q={"type": "choice", "criteria": {str(i): None for i in range(255)}}), {**request(), "images": None},
    ],
)  # fmt: skip
def test_accepted(body: Any) -> None:
    check_request(body, Limits())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "must be an object, got list"), (None, "must be an object"), ("x", "must be an object"),
        ({"state": 1, "questions": {"q": NOUL}}, "model is required"),
        ({**request(), "model": 3}, "model is required and must be a string"),
        ({"model": "m", "questions": {"q": NOUL}}, "state is required"),
        ({**request(), "questions": {}}, "at least one question"), ({**request(), "questions": []}, "at least one"),
        (request(q=None), "q: a question must be an object, got NoneType"),
        (request(q={"type": "essay"}), "q: type must be noul, choice, or score, got 'essay'"),
        (request(q={"type": "choice"}), "q: criteria of a choice must be an object"),
        (request(q={"type": "choice", "criteria": {}}), "q: criteria must not be empty"),
        (request(q={"type": "choice", "criteria": ["a"]}), "q: criteria of a choice must be an object"),
        (request(q={"type": "score", "criteria": {"a": 1}}), "q: criteria of a score must be a list"),
        (request(q={"type": "score", "criteria": ["one"]}), "q: a score needs at least 2 levels"),
        (request(q={"type": "score", "criteria": list("abcdefghijk")}), "q: 11 levels, at most 10"),
        (request(q={"type": "choice", "criteria": {str(i): None for i in range(256)}}), "q: 256 options, at most 255"),
        (request(q={"type": "choice", "criteria": {1: "a", "1": "b"}}), "q: option ids must be strings"),
        (request(q={"type": "choice", "criteria": {True: "a"}}), "q: option ids must be strings"),
        (request(q={**NOUL, "criteria": {"maybe": "x"}}), "criteria of a noul are true and false, got 'maybe'"),
        (request(q={**NOUL, "criteria": "x"}), "criteria of a noul must be an object"),
        (request(**{"": NOUL}), "non-empty string"), (request(**{"a\nTYPE: score": NOUL}), "control characters"),
        (request(**{f"q{i}": NOUL for i in range(65)}), "65 questions, at most 64"),
        ({**request(), "images": [1] * 5}, "5 images, at most 4"),
        ({**request(), "images": "x"}, "images must be a list"),
        ({**request(), "videos": ["v"]}, "videos are not supported"),
    ],
)  # fmt: skip
def test_refused(body: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        check_request(body, Limits())


def test_limits_can_be_switched_off() -> None:
    check_request(request(**{f"q{i}": NOUL for i in range(200)}), UNLIMITED)
    check_request(request(q={"type": "choice", "criteria": {str(i): None for i in range(900)}}), UNLIMITED)
    check_request({"state": 1, "questions": {"q": NOUL}}, UNLIMITED, need_model=False)
