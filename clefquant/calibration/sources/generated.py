"""Drafts from the seeded generators and from public text inside PyPI packages."""

from collections.abc import Iterator

from clefquant.calibration.draft import Draft
from clefquant.calibration.example import Example, Split
from clefquant.calibration.source_config import GeneratorSource, PublicTextSource

#: Generators give as many as they are asked for; this is past any set and stops a source that only gives duplicates.
ENDLESS = 10_000_000


def generator_drafts(source: GeneratorSource, split: Split, seed: int) -> Iterator[Draft]:
    """Examples of a generated family, as many as are taken."""
    from clefquant.calibration.generators import generate

    yield from _drafts(source.name, generate(source.family, split, ENDLESS, seed))


def public_text_drafts(source: PublicTextSource, split: Split, seed: int) -> Iterator[Draft]:
    """Each text of a side once. PrerequisiteError when the package is not installed."""
    from clefquant.calibration.public_text import examples, rows

    yield from _drafts(source.name, examples(source.dataset, split, len(rows(source.dataset, split)), seed))


def _drafts(name: str, examples: Iterator[Example]) -> Iterator[Draft]:
    for index, example in enumerate(examples):
        yield Draft(f"{name} number {index + 1}", f"{index:06d}", example.record, example.answers, example.group)
