"""Generated families of labelled decision records, deterministic per seed.

``train`` and ``calibration`` share sentence frames but never a random stream; ``evaluation`` uses held-out frames and
combinations (see :mod:`clefquant.calibration.generators.wording`).
"""

import random
from collections.abc import Callable, Iterator

from clefquant.calibration.example import Example, Split
from clefquant.calibration.generators import game, invoices, logs, routing
from clefquant.errors import InputError

_GENERATORS: dict[str, Callable[..., Example]] = {
    "routing": routing.generate,
    "invoices": invoices.generate,
    "game": game.generate,
    "logs": logs.generate,
}
FAMILIES: tuple[str, ...] = tuple(_GENERATORS)
"""Names :func:`generate` knows."""

MAX_CHARACTERS = 6000
"""Longest record in characters of Clef's prompt text, about 1,900 of nano's tokens and fewer of Qwen's."""


def generate(family: str, split: Split, count: int, seed: int) -> Iterator[Example]:
    """Yield ``count`` examples of ``family``; example ``i`` depends on (family, split, seed, i) alone."""
    if family not in _GENERATORS:
        raise InputError(f"unknown family {family!r}: use one of {', '.join(FAMILIES)}")
    if split not in ("train", "calibration", "evaluation"):
        raise InputError(f"unknown split {split!r}: use train, calibration or evaluation")
    for index in range(count):
        rng = random.Random(f"{family}/{split}/{seed}/{index}")
        example = _GENERATORS[family](rng, split=split)
        while _size(example) > MAX_CHARACTERS:
            example = _GENERATORS[family](rng, split=split)
        yield example


def _size(example: Example) -> int:
    options = sum(len(question.get("criteria") or ()) for question in example.record["questions"].values())
    return len(str(example.record)) + 30 * options
