"""Answers from what an engine sends back: ``{"logits": {question: {option: value}}}`` or ``{"error": reason}`` per
record."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import CheckFailed
from clefquant.verify.answers import Answer, failed
from clefquant.verify.join import request_order


class Served(NamedTuple):
    """What an engine that really ran gave: all records together, some of them again one at a time, itself, its
    speed.
    """

    answers: list[Answer]
    alone: list[Answer]
    about: dict[str, Any]
    performance: dict[str, Any]


def answers_of(records: Sequence[StoredRecord], results: Sequence[Mapping[str, Any]], engine: str) -> list[Answer]:
    """One answer per question the engine answered; the join finds what it left out. A record with an error is NaN
    throughout.

    CheckFailed when the engine returned another number of records than it was given.
    """
    if len(results) != len(records):
        raise CheckFailed(f"{engine} answered {len(results)} records of {len(records)}.")
    found: list[Answer] = []
    for record, result in zip(records, results, strict=True):
        if "error" in result:
            found += [
                failed(record.record_id, str(name), request_order(question), str(result["error"]))
                for name, question in record.record["questions"].items()
            ]
            continue
        for name, options in result["logits"].items():
            logits = np.array([np.nan if value is None else value for value in options.values()], np.float32)
            found.append(Answer(record.record_id, name, tuple(options), logits))
    return found
