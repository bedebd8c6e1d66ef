"""ARC, MMLU, HellaSwag, ANLI and BoolQ: questions about a text or about the world."""

import random
from collections.abc import Mapping
from typing import Any

from clefquant.calibration.check import BadRecord
from clefquant.calibration.sources.adapters.task import Adapter, Mapped, choice, lettered

_Names = Mapping[str, list[str]]
NLI = {
    "entailment": "The hypothesis follows from the premise.",
    "neutral": "The premise neither proves nor rules out the hypothesis.",
    "contradiction": "The premise rules the hypothesis out.",
}
CERTAINTY = ("The premise rules it out.", "The premise leaves it open.", "The premise makes it certain.")


def arc(row: Mapping[str, Any], names: _Names, rng: random.Random) -> Mapped:
    """Options keep the letters (or digits) of the exam."""
    labels, texts = row["choices"]["label"], row["choices"]["text"]
    question = choice("Choose the correct answer to the question.", dict(zip(labels, texts, strict=True)))
    record = {"state": row["question"], "questions": {"answer": question}}
    return Mapped(record, {"answer": row["answerKey"]}, record_id=str(row.get("id") or ""))


def mmlu(row: Mapping[str, Any], names: _Names, rng: random.Random) -> Mapped:
    """``answer`` is the index of the right choice."""
    criteria = lettered(row["choices"])
    index = row["answer"]
    if not isinstance(index, int) or not 0 <= index < len(criteria):
        raise BadRecord(f"answer {index!r} is not one of 0 to {len(criteria) - 1}")
    state = {"subject": str(row["subject"]).replace("_", " "), "question": row["question"]}
    questions = {"answer": choice("Choose the correct answer to the question.", criteria)}
    return Mapped({"state": state, "questions": questions}, {"answer": list(criteria)[index]})


def hellaswag(row: Mapping[str, Any], names: _Names, rng: random.Random) -> Mapped:
    """Labels are digits as text; the test split has empty ones and so no gold answer."""
    criteria = lettered(row["endings"])
    label = str(row["label"])
    answers = {"ending": list(criteria)[int(label)]} if label.isdigit() and int(label) < len(criteria) else None
    state = {"activity": row["activity_label"], "text": row["ctx"]}
    return Mapped(
        {"state": state, "questions": {"ending": choice("How does the text most plausibly go on?", criteria)}}, answers
    )


def anli(row: Mapping[str, Any], names: _Names, rng: random.Random, *, questions: int = 1) -> Mapped:
    """``questions``: 1 asks for the relation; 3 asks besides whether it follows, and how certain it is."""
    order = names.get("label") or list(NLI)
    label = row["label"]
    if not isinstance(label, int) or not 0 <= label < len(order) or order[label] not in NLI:
        raise BadRecord(f"label {label!r} is not one of 0 to 2")
    gold = order[label]
    asked = {"relation": choice("How does the hypothesis relate to the premise?", NLI)}
    answers = {"relation": gold}
    if questions == 3:
        asked["follows"] = {"type": "noul", "instructions": "The hypothesis follows from the premise."}
        asked["certainty"] = {
            "type": "score",
            "instructions": "How certain is the hypothesis?",
            "criteria": list(CERTAINTY),
        }
        answers |= {
            "follows": "true" if gold == "entailment" else "false",
            "certainty": {"contradiction": "0", "neutral": "1", "entailment": "2"}[gold],
        }
    elif questions != 1:
        raise BadRecord(f"questions: {questions!r} is neither 1 nor 3")
    state = {"premise": row["premise"], "hypothesis": row["hypothesis"]}
    return Mapped({"state": state, "questions": asked}, answers, record_id=str(row.get("uid") or ""))


def boolq(row: Mapping[str, Any], names: _Names, rng: random.Random) -> Mapped:
    """A yes/no question about a passage."""
    question = {"type": "noul", "instructions": f"{row['question']}?"}
    return Mapped({"state": row["passage"], "questions": {"answer": question}}, {"answer": bool(row["answer"])})


ARC = Adapter(("question", "choices", "answerKey"), "allenai/ai2_arc (ARC-Challenge), CC-BY-SA-4.0", arc)
MMLU = Adapter(("question", "subject", "choices", "answer"), "cais/mmlu (all), MIT", mmlu)
HELLASWAG = Adapter(("activity_label", "ctx", "endings", "label"), "Rowan/hellaswag, MIT", hellaswag)
ANLI = Adapter(("premise", "hypothesis", "label"), "facebook/anli, CC-BY-NC-4.0", anli)
BOOLQ = Adapter(("question", "answer", "passage"), "google/boolq, CC-BY-SA-3.0", boolq)
