"""In which order rows are taken: as they are, or drawn by the seed, without holding the rows in memory."""

import random
from array import array
from collections.abc import Iterator, Sequence

from clefquant.calibration.sources.rows import Row, RowFile

FIRST_REPLACEMENTS = 64


def in_order(files: Sequence[RowFile], draw: str | None, count: int | None) -> Iterator[tuple[RowFile, Row]]:
    """Rows of all files, one after another; or ``count`` of them drawn without replacement when ``draw`` (the seed) is
    given.

    Drawn rows come in rounds, each in file order so that it is one pass over the files: first the ``count`` asked for,
    then replacements for those that were rejected, as long as the reader goes on asking.
    """
    if draw is None or count is None:
        for file in files:
            for row in file.read():
                yield file, row
        return
    counts = [file.count() for file in files]
    numbers = array("q", range(sum(counts)))
    random.Random(draw).shuffle(numbers)
    start, size = 0, count
    while start < len(numbers):
        yield from _round(files, counts, numbers[start : start + size])
        start, size = start + size, FIRST_REPLACEMENTS if start == 0 else 2 * size


def _round(files: Sequence[RowFile], counts: Sequence[int], numbers: Sequence[int]) -> Iterator[tuple[RowFile, Row]]:
    first = 0
    for file, rows in zip(files, counts, strict=True):
        wanted = {number - first for number in numbers if first <= number < first + rows}
        if wanted:
            for row in file.read(wanted):
                yield file, row
        first += rows
