"""What an adapter of a public task gives for a row, and what is said about it."""

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from clefquant.calibration.check import BadRecord


class Mapped(NamedTuple):
    """A record with its gold answers; ``record_id`` empty: the row's number."""

    record: dict[str, Any]
    answers: Any
    group: str = ""
    record_id: str = ""


class Adapter(NamedTuple):
    """How a public task becomes records.

    ``record(row, class names by column, rng, **options)``; ``columns``: what a row must have; ``hub``: data set,
    configuration and licence the adapter was written for, as of December 2026.
    """

    columns: tuple[str, ...]
    hub: str
    make: Callable[..., Mapped]

    def options(self) -> list[str]:
        """Names of the options the adapter takes."""
        found = inspect.signature(self.make).parameters.values()
        return [parameter.name for parameter in found if parameter.kind is parameter.KEYWORD_ONLY]

    def record(
        self, row: Mapping[str, Any], names: Mapping[str, list[str]], rng: random.Random, **options: Any
    ) -> Mapped:
        """The record of a row. BadRecord when the row lacks a column."""
        if not isinstance(row, Mapping) or (missing := [column for column in self.columns if column not in row]):
            raise BadRecord(
                f"the row has no {', '.join(missing) if isinstance(row, Mapping) else 'columns'} ({self.hub} has)"
            )
        return self.make(row, names, rng, **options)


def choice(instructions: str, criteria: Mapping[str, Any]) -> dict[str, Any]:
    """A choice question."""
    return {"type": "choice", "instructions": instructions, "criteria": dict(criteria)}


def lettered(texts: Sequence[Any]) -> dict[str, str]:
    """Options ``A``, ``B``, … with the given descriptions."""
    return {chr(ord("A") + index): str(text) for index, text in enumerate(texts)}


def spoken(label: str) -> str:
    """A label's name as words (``card_arrival`` → ``card arrival``)."""
    return label.replace("_", " ").strip()
