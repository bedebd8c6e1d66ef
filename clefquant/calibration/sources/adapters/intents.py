"""BANKING77 and CLINC150: which of many intents does a message express?"""

import random
from collections.abc import Mapping
from typing import Any

from clefquant.calibration.check import BadRecord
from clefquant.calibration.sources.adapters.task import Adapter, Mapped, choice, spoken
from clefquant.calibration.sources.template import class_name


def _intent(
    column: str, row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random, ways: Any
) -> Mapped:
    if not isinstance(row["text"], str) or not row["text"].strip():
        raise BadRecord("text is empty")
    gold, pool = class_name(column, row, names), list(names[column])
    number = rng.choice(ways) if isinstance(ways, list) else ways
    if number != "all":
        if isinstance(number, bool) or not isinstance(number, int) or not 2 <= number <= len(pool):
            raise BadRecord(f"ways: {number!r} is neither all nor a number from 2 to {len(pool)}")
        pool = [gold, *rng.sample([name for name in pool if name != gold], number - 1)]
        rng.shuffle(pool)
    question = choice("Which intent does the customer's message express?", {name: spoken(name) for name in pool})
    return Mapped({"state": row["text"], "questions": {"intent": question}}, {"intent": gold})


def banking77(
    row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random, *, ways: Any = "all"
) -> Mapped:
    """``ways``: ``all`` 77, a number of intents, or a list to draw one of per row (``[all, 10]``)."""
    return _intent("label", row, names, rng, ways)


def clinc150(
    row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random, *, ways: Any = "all"
) -> Mapped:
    """150 intents and ``oos`` (out of scope)."""
    return _intent("intent", row, names, rng, ways)


BANKING77 = Adapter(("text", "label"), "legacy-datasets/banking77, CC-BY-4.0", banking77)
CLINC150 = Adapter(("text", "intent"), "clinc/clinc_oos (plus), CC-BY-3.0", clinc150)
