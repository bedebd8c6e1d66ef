"""BANKING77 and CLINC150: which of many intents does a message express?"""

import random
from collections.abc import Mapping
from typing import Any

from clefquant.calibration.check import BadRecord
from clefquant.calibration.sources.adapters.task import Adapter, Mapped, choice, spoken
from clefquant.calibration.sources.template import class_name


def _intent(
    column: str, row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random, options: Any
) -> Mapped:
    if not isinstance(row["text"], str) or not row["text"].strip():
        raise BadRecord("text is empty")
    gold, pool = class_name(column, row, names), list(names[column])
    if options != "all":
        ways = rng.choice(options) if isinstance(options, list) else options
        if ways != "all":
            if isinstance(ways, bool) or not isinstance(ways, int) or not 2 <= ways <= len(pool):
                raise BadRecord(f"options: {ways!r} is neither all nor a number from 2 to {len(pool)}")
            pool = [gold, *rng.sample([name for name in pool if name != gold], ways - 1)]
            rng.shuffle(pool)
    question = choice("Which intent does the customer's message express?", {name: spoken(name) for name in pool})
    return Mapped({"state": row["text"], "questions": {"intent": question}}, {"intent": gold})


def banking77(
    row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random, *, options: Any = "all"
) -> Mapped:
    """``options``: ``all`` 77, a number of intents, or a list to draw one of per row (``[all, 10]``)."""
    return _intent("label", row, names, rng, options)


def clinc150(
    row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random, *, options: Any = "all"
) -> Mapped:
    """150 intents and ``oos`` (out of scope)."""
    return _intent("intent", row, names, rng, options)


BANKING77 = Adapter(("text", "label"), "legacy-datasets/banking77, CC-BY-4.0", banking77)
CLINC150 = Adapter(("text", "intent"), "clinc/clinc_oos (plus), CC-BY-3.0", clinc150)
