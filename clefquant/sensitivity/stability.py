"""How sure a table's order of units is: ranks over tables of records drawn anew."""

from typing import NamedTuple

import numpy as np

from clefquant.sensitivity.table import Rank, SensitivityTable

RESAMPLES = 400


class RankInterval(NamedTuple):
    """A unit's rank by KL in one format (1 = least) and the middle 90 % of its ranks over resampled records."""

    unit: str
    rank: int
    low: float
    high: float


def rank_intervals(table: SensitivityTable, format_name: str, seed: int = 0) -> list[RankInterval]:
    """Rank intervals of every unit that has figures in ``format_name``, in the table's order."""
    entries = [e for e in table.entries if e.format == format_name and not e.failed_logits]
    if not entries:
        return []
    sums = np.array([table.record_sums(e) for e in entries])  # [units, records]
    records = sums.shape[1]
    draws = np.random.default_rng(seed).multinomial(records, np.full(records, 1 / records), size=RESAMPLES)
    # the number of questions drawn is common to all units and does not change their order
    ranks = 1 + np.argsort(np.argsort(sums @ draws.T, axis=0, kind="stable"), axis=0, kind="stable")
    own = 1 + np.argsort(np.argsort(sums.sum(axis=1), kind="stable"), kind="stable")
    low, high = np.quantile(ranks, [0.05, 0.95], axis=1)
    return [
        RankInterval(e.unit, int(r), float(a), float(b)) for e, r, a, b in zip(entries, own, low, high, strict=True)
    ]


def with_ranks(table: SensitivityTable) -> SensitivityTable:
    """The table, every entry that did not fail with its rank."""
    known = {
        (item.unit, name): Rank(rank=item.rank, low=item.low, high=item.high)
        for name in table.formats
        for item in rank_intervals(table, name)
    }
    entries = [e.model_copy(update={"rank": known.get((e.unit, e.format))}) for e in table.entries]
    return table.model_copy(update={"entries": entries})
