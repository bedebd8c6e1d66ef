"""Plain text as a state with one question that any text answers; what language-model calibration sets are made of."""

import random
from collections.abc import Mapping
from typing import Any

from clefquant.calibration.check import BadRecord
from clefquant.calibration.sources.adapters.task import Adapter, Mapped, choice

KINDS = {
    "prose": "Running text, an article or a story",
    "code": "Source code or configuration",
    "talk": "Mail, chat or forum posts",
    "data": "Tables, lists or records",
}


def plain_text(row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random) -> Mapped:
    """No gold answer."""
    if not isinstance(row["text"], str) or not row["text"].strip():
        raise BadRecord("text is empty")
    return Mapped({"state": row["text"], "questions": {"kind": choice("What kind of text is this?", KINDS)}}, None)


PLAIN_TEXT = Adapter(("text",), "NeelNanda/pile-10k", plain_text)
