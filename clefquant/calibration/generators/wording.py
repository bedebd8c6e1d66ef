"""Small pieces every generator is made of: wordings split by side, option ids, the three question types.

Held-out rule: a wording is a pair (shown, held out). ``train`` and ``calibration`` draw from the first, ``evaluation``
from the second, so evaluation never reads a sentence frame that training has shown. Combinations (an intent, a country
with a status) are held out by hash through :func:`is_held_out` and :func:`split_pairs`.
"""

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from clefquant.calibration.example import Example, Split

T = TypeVar("T")
Wording = tuple[Sequence[str], Sequence[str]]
"""(frames that train and calibration use, frames that only evaluation uses)"""
Pair = tuple[str, str]
HELD_OUT_SHARE = 0.15

NOUL_CRITERIA: tuple[dict[str, str], ...] = (
    {"true": "Yes", "false": "No"},
    {"true": "It holds.", "false": "It does not hold."},
    {"true": "correct", "false": "not correct"},
    {"true": "Yes, this is so."},
)
OPAQUE_IDS = ("q{i}", "opt_{i}", "option_{r}", "c{r}", "k{i}", "{letter}{i}")


class Asked(NamedTuple):
    """A question with the id it is asked under and the id of its gold option."""

    question_id: str
    question: dict[str, Any]
    answer: str


def shuffled(rng: random.Random, items: Iterable[T]) -> list[T]:
    """A shuffled copy of ``items``."""
    copy = list(items)
    rng.shuffle(copy)
    return copy


def phrase(rng: random.Random, split: Split, wording: Wording, **values: object) -> str:
    """A frame of ``wording`` from the side that ``split`` may see, filled with ``values``."""
    return rng.choice(wording[1] if split == "evaluation" else wording[0]).format(**values)


def is_held_out(*parts: str) -> bool:
    """Whether this combination is kept for evaluation: a fixed pseudo-random share of all combinations."""
    digest = hashlib.sha256("\x1f".join(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def split_pairs(name: str, pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    """The pairs that train and calibration use and those kept for evaluation, in order; ``name`` keys the hash."""
    shown: list[Pair] = []
    held: list[Pair] = []
    for pair in pairs:
        (held if is_held_out(name, *pair) else shown).append(pair)
    return tuple(shown), tuple(held)


def question_id(rng: random.Random, *names: str) -> str:
    """One of ``names``, or now and then an id that says nothing."""
    return f"{rng.choice(('q', 'field_', 'check_'))}{rng.randint(1, 99)}" if rng.random() < 0.15 else rng.choice(names)


def noul(rng: random.Random, name: str, instructions: str, truth: bool) -> Asked:
    """A true/false question; one in eight overrides the default descriptions."""
    question: dict[str, Any] = {"type": "noul", "instructions": instructions}
    if rng.random() < 0.12:
        question["criteria"] = dict(rng.choice(NOUL_CRITERIA))
    return Asked(name, question, "true" if truth else "false")


def score(name: str, instructions: str, levels: Sequence[str], level: int) -> Asked:
    """A question about an ordered level, lowest first."""
    return Asked(name, {"type": "score", "instructions": instructions, "criteria": list(levels)}, str(level))


def choice(
    rng: random.Random,
    name: str,
    instructions: str,
    options: Mapping[str, str | None],
    gold: str,
    *,
    opaque: float = 0.35,
) -> Asked:
    """A question with one right option out of ``options`` (id to description), in random order.

    With probability ``opaque`` the ids are replaced by ones that say nothing; where an option has no description all
    ids stay.
    """
    criteria: dict[str, str | None] = {}
    answer = gold
    style = rng.choice(OPAQUE_IDS) if rng.random() < opaque and None not in options.values() else "{key}"
    letter = rng.choice("abxyz")
    for index, key in enumerate(shuffled(rng, options)):
        option_id = style.format(key=key, i=index + 1, r=7 * index + 11, letter=letter)
        criteria[option_id] = options[key]
        if key == gold:
            answer = option_id
    return Asked(name, {"type": "choice", "instructions": instructions, "criteria": criteria}, answer)


def assemble(
    rng: random.Random, state: object, asked: Sequence[Asked], group: str, *, questions: int | None = None
) -> Example:
    """An example that asks ``questions`` of ``asked`` (default: one to six) in random order; ids stay unique."""
    count = questions if questions is not None else rng.choice((1, 2, 3, 3, 4, 4, 5, 6))
    chosen: dict[str, Asked] = {}
    for item in shuffled(rng, asked):
        if len(chosen) < count:
            chosen.setdefault(item.question_id, item)
    record = {"state": state, "questions": {name: item.question for name, item in chosen.items()}}
    return Example(record, {name: item.answer for name, item in chosen.items()}, group)
