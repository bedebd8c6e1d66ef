"""Which function reads which kind of source."""

from collections.abc import Iterator
from typing import Literal

from clefquant.calibration.draft import Draft
from clefquant.calibration.encoding import Encoder
from clefquant.calibration.mixture import GeneratorSource, Mixture, PublicTextSource, Source
from clefquant.calibration.sources.generated import generator_drafts, public_text_drafts


def drafts(
    source: Source, mixture: Mixture, split: Literal["calibration", "evaluation"], seed: int, encoder: Encoder
) -> Iterator[Draft]:
    """The drafts of one source, in an order fixed by source, split and seed."""
    if isinstance(source, GeneratorSource):
        return generator_drafts(source, split, seed)
    if isinstance(source, PublicTextSource):
        return public_text_drafts(source, split, seed)
    raise NotImplementedError(source.kind)
