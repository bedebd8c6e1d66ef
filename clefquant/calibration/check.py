"""What a record must be before it is encoded, and what is odd about it but allowed.

The release's encoder accepts more than it can answer: two options that become one id, an instruction without tokens
(NaN for the whole record), ids that forge a header line. Those are found here, with the question's id in the message.
"""

from collections.abc import Mapping
from typing import Any

MAX_QUESTIONS, MAX_OPTIONS = 64, 255
"""Limits of the hosted service; more is kept with a warning."""
RECORD_KEYS = ("state", "questions", "images", "videos", "media_kwargs")
"""What the encoder reads; other keys of an input record are left out of the set."""


class BadRecord(ValueError):
    """A record that cannot be part of a set; the message is the reason."""


def check_record(record: Any) -> list[str]:
    """Raise BadRecord with the reason, or return the kinds of oddity found, in words to count them by."""
    if not isinstance(record, Mapping):
        raise BadRecord(f"a record is an object with state and questions, got {_kind(record)}")
    if "state" not in record:
        raise BadRecord('no "state" (null is allowed, leaving it out is not)')
    questions = record.get("questions")
    if not isinstance(questions, Mapping) or not questions:
        raise BadRecord(f'"questions" must be an object with at least one question, got {_kind(questions)}')
    for key in ("images", "videos"):
        if record.get(key) is not None and not isinstance(record[key], list):
            raise BadRecord(f'"{key}" must be a list, got {_kind(record[key])}')
    _check_keys("questions", questions)
    odd = set()
    if len(questions) > MAX_QUESTIONS:
        odd.add(f"more than {MAX_QUESTIONS} questions")
    for name, question in questions.items():
        odd |= _check_question(str(name), question)
    return sorted(odd)


def option_ids(question: Mapping[str, Any]) -> list[str]:
    """Option ids of a checked question, in the order of the request."""
    if question["type"] == "noul":
        return ["true", "false"]
    criteria = question["criteria"]
    return [str(key) for key in criteria] if question["type"] == "choice" else [str(i) for i in range(len(criteria))]


def check_answers(record: Mapping[str, Any], answers: Any) -> dict[str, str]:
    """Gold answers as option ids (``True`` → ``"true"``); BadRecord when one names no question or no option."""
    if answers is None:
        return {}
    if not isinstance(answers, Mapping):
        raise BadRecord(f'"answers" must be an object of question id to option id, got {_kind(answers)}')
    checked = {}
    questions = {str(name): question for name, question in record["questions"].items()}
    for name, answer in answers.items():
        if answer is None:
            continue
        if str(name) not in questions:
            raise BadRecord(f"an answer is given for {name!r}, which is no question")
        text = str(answer).lower() if isinstance(answer, bool) else str(answer)
        allowed = option_ids(questions[str(name)])
        if text not in allowed:
            shown = ", ".join(allowed[:5]) + (", …" if len(allowed) > 5 else "")
            raise BadRecord(f"{name}: the answer {text!r} is no option ({shown})")
        checked[str(name)] = text
    return checked


def _check_question(name: str, question: Any) -> set[str]:
    if not isinstance(question, Mapping):
        raise BadRecord(f"{name}: a question is an object, got {_kind(question)}")
    kind, criteria = question.get("type"), question.get("criteria")
    if kind not in ("noul", "choice", "score"):
        raise BadRecord(f"{name}: type must be noul, choice or score, got {kind!r}")
    if name == "" and question.get("instructions") in (None, ""):
        raise BadRecord('a question with the id "" needs instructions: the model would have nothing to read')
    odd = set()
    if any(ord(char) < 32 or ord(char) in (0x7F, 0x85, 0x2028, 0x2029) for char in name):
        odd.add("question ids with control characters or line breaks")
    if kind == "noul":
        return odd | _check_noul(name, criteria)
    fits = isinstance(criteria, Mapping if kind == "choice" else list)
    if not fits or criteria is None or not criteria:
        shape = "an object of option id to description" if kind == "choice" else "a list of levels, lowest first"
        raise BadRecord(f"{name}: criteria of a {kind} must be {shape} and not empty, got {_kind(criteria)}")
    if isinstance(criteria, Mapping):
        _check_keys(f"{name}: criteria", criteria)
    if len(criteria) == 1:
        odd.add("questions with one option (always answered with it)")
    if len(criteria) > MAX_OPTIONS:
        odd.add(f"questions with more than {MAX_OPTIONS} options")
    return odd


def _check_noul(name: str, criteria: Any) -> set[str]:
    if criteria is None:
        return set()
    if not isinstance(criteria, Mapping):
        raise BadRecord(f"{name}: criteria of a noul must be an object with true and false, got {_kind(criteria)}")
    _check_keys(f"{name}: criteria", criteria)
    return (
        set()
        if set(criteria) <= {"true", "false"}
        else {"noul criteria other than true and false (ignored by the model)"}
    )


def _check_keys(where: str, mapping: Mapping[Any, Any]) -> None:
    """Ids become text: two that become the same, or a bool, would be read as something else than was meant."""
    seen: set[str] = set()
    for key in mapping:
        if isinstance(key, bool) or key is None:
            raise BadRecord(f"{where}: the id {key!r} is a {_kind(key)}; write it as text")
        if str(key) in seen:
            raise BadRecord(f"{where}: two ids become {str(key)!r}")
        seen.add(str(key))


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "bool", int: "a number", float: "a number"}
    if value is None:
        return "nothing"
    if isinstance(value, (Mapping, list, str)) and not value:
        return f"an empty {names[type(value)].split()[-1]}" if type(value) in names else "nothing"
    return names.get(type(value), type(value).__name__)
