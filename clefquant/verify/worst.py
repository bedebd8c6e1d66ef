"""The questions that moved most, with what a reader needs to judge each: record, options, both distributions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clefquant.calibration.stored import StoredRecord
from clefquant.verify.answers import Answer, Key
from clefquant.verify.join import Pairs
from clefquant.verify.metrics import Measures
from clefquant.verify.segments import FloatArray, Segments

WORST = 50
_STATE_CHARACTERS = 4000
_OPTIONS = 12


def worst_questions(
    pairs: Pairs, m: Measures, records: Sequence[StoredRecord], candidate: Sequence[Answer]
) -> list[dict[str, Any]]:
    """The 50 with the largest KL, those without a finite answer first; ties in stored order."""
    by_id = {record.record_id: record for record in records}
    errors: dict[Key, str] = {answer.key: answer.error for answer in candidate if answer.error}
    kl = np.where(np.isnan(m.kl), np.inf, m.kl)
    order = [int(index) for index in np.argsort(-kl, kind="stable") if m.counted[index]]
    return [_entry(pairs, m, index, by_id[pairs.asked[index].record], errors) for index in order[:WORST]]


def _entry(pairs: Pairs, m: Measures, index: int, record: StoredRecord, errors: Mapping[Key, str]) -> dict[str, Any]:
    one = pairs.asked[index]
    span = slice(int(pairs.starts[index]), int(pairs.starts[index + 1]))
    p, q = _softmax(pairs.reference[span]), _softmax(pairs.candidate[span])
    question = {str(name): value for name, value in record.record["questions"].items()}[one.question]
    rank = np.maximum(np.nan_to_num(p), np.nan_to_num(q))
    shown = sorted(int(place) for place in np.argsort(-rank, kind="stable")[:_OPTIONS])
    state = record.record.get("state")
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False, indent=1)
    return {
        "record": one.record,
        "question": one.question,
        "type": one.type,
        "group": one.group,
        "tokens": one.tokens,
        "gold": one.gold,
        "agree": bool(m.agree[index]),
        "reference_top": one.order[m.reference.top[index]] if m.reference.finite[index] else None,
        "candidate_top": one.order[m.candidate.top[index]] if m.candidate.finite[index] else None,
        "margin": _number(m.margin[index]),
        "kl": _number(m.kl[index]),
        "tv": _number(m.tv[index]),
        "max_dp": _number(m.max_dp[index]),
        "error": errors.get((one.record, one.question)),
        "instructions": question.get("instructions"),
        "state": text[:_STATE_CHARACTERS],
        "state_cut": len(text) > _STATE_CHARACTERS,
        "options": [
            {
                "id": one.order[place],
                "description": _description(question, one.order[place]),
                "p": _number(p[place]),
                "q": _number(q[place]),
            }
            for place in shown
        ],
        "options_left_out": len(one.order) - len(shown),
    }


def _description(question: Mapping[str, Any], option: str) -> Any:
    criteria = question.get("criteria")
    if isinstance(criteria, list):
        return criteria[int(option)]
    return {str(key): value for key, value in (criteria or {}).items()}.get(option)


def _softmax(logits: FloatArray) -> FloatArray:
    if not np.isfinite(logits).all():
        return np.full(len(logits), np.nan)
    return np.exp(Segments.of_sizes(np.array([len(logits)])).log_softmax(logits))


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
