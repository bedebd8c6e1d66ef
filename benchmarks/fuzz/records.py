"""Records through the checks and the encoder of a calibration set, beside the release's own ``encode_record``.

What is accepted has the release's tokens and spans. What is refused the release refuses too, or it is one of the cases
that it encodes without being able to answer, or that no set can hold.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from values import JSON, damaged

from clefquant.calibration.check import RECORD_KEYS
from clefquant.calibration.draft import Draft
from clefquant.calibration.encoding import load_encoder
from clefquant.calibration.prepare import Limits
from clefquant.calibration.prepare import prepare as prepare_draft
from clefquant.release.release import open_release

#: Reasons for which more is refused than by the release.
STRICTER = re.compile(
    "without tokens|needs instructions|half a character|nested too deep|must be |a question is |"
    'no "state"|two ids become|the id .* is a|a record is an object|cannot be written as JSON'
)
REFUSALS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
SOUND = {
    "state": {"ticket": 7, "text": ["late", None, 1.5]},
    "questions": {
        "late": {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "yes", "false": None}},
        "team": {"type": "choice", "instructions": {"who": 1}, "criteria": {"b": "money", "a": None, "": 3}},
        "urgency": {"type": "score", "criteria": ["low", {"x": 1}, "high"]},
    },
}
VALUES = JSON | st.sampled_from(("\ud800", "noul", "choice", "score", "word " * 400)) | st.just(SOUND["questions"])


def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Callable[[Any], None]]:
    encoder = load_encoder(open_release("nano").path)
    plain = encoder.tokenizer.tokenizer

    def check(given: tuple[Any, int]) -> None:
        record, max_length = given
        outcome = prepare_draft(Draft("1", "r", record), Limits("fuzz", max_length), encoder)
        try:
            kept = {key: record[key] for key in RECORD_KEYS if key in record}
            expected = encoder.code.encode_record(plain, {**kept, "id": "r"}, max_length=max_length)
        except REFUSALS:
            expected = None
        if expected is None:
            assert outcome.fault is not None, "the release refuses it, the set takes it"
        elif outcome.fault is not None:
            assert STRICTER.search(outcome.fault), f"the release takes it, the set does not: {outcome.fault}"
        else:
            assert encoder.encode(record, "r", max_length=max_length).record == expected
            assert outcome.tokens == len(expected.input_ids)

    return st.tuples(damaged(SOUND, other=VALUES), st.sampled_from((64, 200, 16384))), check
