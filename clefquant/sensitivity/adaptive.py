"""Which probes get more records: those of the units whose rank is least certain.

Every probe sees the first quarter of the shards. Then, format by format, the half of the units with the widest rank
intervals sees half of them, and again half of the units the rest. What is decided depends on finished probes alone,
so a resumed sweep decides the same.
"""

from collections.abc import Iterator, Sequence

from clefquant.sensitivity.probe import Work
from clefquant.sensitivity.stability import rank_intervals
from clefquant.sensitivity.table import SensitivityTable

#: Shards an adaptive sweep has at least, so that there is something to leave out.
FEWEST_SHARDS = 8
_SHARES = (0.25, 0.5, 1.0)
_KEPT = 0.5

Pair = tuple[str, str]


def rounds(shards: int) -> Iterator[int]:
    """How many of the shards each round reaches."""
    yield from sorted({max(1, round(share * shards)) for share in _SHARES})


def uncertain(table: SensitivityTable) -> set[Pair]:
    """Of every format, the half of the units with the widest rank intervals, those of one rank left out."""
    found: set[Pair] = set()
    for name in table.formats:
        intervals = rank_intervals(table, name)
        wide = sorted((item for item in intervals if item.high > item.low), key=lambda item: item.low - item.high)
        found |= {(item.unit, name) for item in wide[: round(_KEPT * len(intervals))]}
    return found


def due(work: Sequence[Work], reached: dict[Pair, int], pairs: set[Pair], end: int) -> list[Work]:
    """What of ``work`` brings ``pairs`` from the shards they have ``reached`` to ``end``."""
    return [
        item for item in work if (pair := (item.unit.name, item.format)) in pairs and reached[pair] <= item.shard < end
    ]
