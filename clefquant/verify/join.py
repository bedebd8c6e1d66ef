"""Putting reference and candidate side by side: by record, question and option id, and nothing may be left over."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import CheckFailed
from clefquant.verify.answers import Answer, Key
from clefquant.verify.segments import IntArray

TYPES = ("noul", "choice", "score")
"""Question types by the release's type number."""


class Asked(NamedTuple):
    """A question of the evaluation set. ``order``: option ids as the request lists them, which decides ties."""

    record: str
    question: str
    type: str
    group: str
    tokens: int
    order: tuple[str, ...]
    gold: str | None


class Pairs(NamedTuple):
    """Q questions with N options in all; options of one question lie side by side in request order."""

    asked: list[Asked]
    starts: IntArray  # [Q + 1], where each question's options begin
    reference: npt.NDArray[np.float64]  # [N] logits
    candidate: npt.NDArray[np.float64]  # [N] logits
    gold: IntArray  # [Q] place of the gold option in request order, -1 when there is none


def request_order(question: Mapping[str, Any]) -> tuple[str, ...]:
    """Option ids in the order of the request, as the release's ``systemone_answer`` goes through them."""
    if question["type"] == "noul":
        return ("true", "false")
    if question["type"] == "choice":
        return tuple(str(option) for option in question["criteria"])
    return tuple(str(level) for level in range(len(question["criteria"])))


def asked_questions(records: Iterable[StoredRecord]) -> list[Asked]:
    """Every question of the evaluation records, in stored order."""
    return [
        Asked(
            record.record_id, name, str(question["type"]), record.group, record.tokens, request_order(question),
            record.answers.get(name),
        )
        for record in records
        for name, question in ((str(key), value) for key, value in record.record["questions"].items())
    ]  # fmt: skip


def join(asked: Sequence[Asked], reference: Iterable[Answer], candidate: Iterable[Answer]) -> Pairs:
    """Pair the answers. CheckFailed on a duplicate, a missing or an extra record, question or option on either side."""
    _refuse_duplicates(((one.record, one.question) for one in asked), "the evaluation set")
    wanted = {(one.record, one.question): one for one in asked}
    left = _matched(wanted, reference, "the BF16 reference")
    right = _matched(wanted, candidate, "the candidate")
    counts = np.array([len(one.order) for one in asked], np.int64)
    return Pairs(
        list(asked),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array([left[key][option] for key, one in wanted.items() for option in one.order], np.float64),
        np.array([right[key][option] for key, one in wanted.items() for option in one.order], np.float64),
        np.array([_gold(one) for one in asked], np.int64),
    )


def _gold(one: Asked) -> int:
    if one.gold is None:
        return -1
    if one.gold not in one.order:
        raise CheckFailed(
            f"record {one.record}, question {one.question}: the gold answer {one.gold!r} is none of its options "
            f"({', '.join(one.order[:5])}); correct the evaluation set."
        )
    return one.order.index(one.gold)


def _spelled(key: Key) -> str:
    return f"record {key[0]!r}, question {key[1]!r}"


def _refuse_duplicates(keys: Iterable[Key], side: str) -> None:
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise CheckFailed(
            f"{side} has {len(twice)} questions more than once, first {_spelled(twice[0])}; "
            "record ids must differ within and between the sets."
        )


def _matched(wanted: Mapping[Key, Asked], answers: Iterable[Answer], side: str) -> dict[Key, dict[str, float]]:
    rows = list(answers)
    _refuse_duplicates((row.key for row in rows), side)
    found = {row.key: dict(zip(row.options, row.logits.tolist(), strict=True)) for row in rows}
    if missing := [key for key in wanted if key not in found]:
        raise CheckFailed(
            f"{side} lacks {len(missing)} of {len(wanted)} questions, first {_spelled(missing[0])}; "
            "both sides must answer the same evaluation set."
        )
    if extra := [key for key in found if key not in wanted]:
        raise CheckFailed(
            f"{side} answers {len(extra)} questions that the evaluation set does not have, first {_spelled(extra[0])}."
        )
    for row in rows:
        if Counter(row.options) != Counter(wanted[row.key].order):
            raise CheckFailed(
                f"{side} has the options {', '.join(row.options[:8])} for {_spelled(row.key)}; the "
                f"evaluation set has {', '.join(wanted[row.key].order[:8])}."
            )
    return found
