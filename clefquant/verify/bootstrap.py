"""Intervals by resampling records with replacement, seeded and as matrix products.

Records are resampled, not questions: the questions of one record share its text and err together. Percentile
interval, 95 %.
"""

import hashlib
import math

import numpy as np

from clefquant.verify.segments import FloatArray
from clefquant.verify.totals import RATIOS, figures

RESAMPLES = 1000
COVERAGE = 0.95
_CHUNK_WEIGHTS = 5_000_000  # weights in memory at once


def intervals(names: list[str], sums: FloatArray, seed: int, label: str) -> dict[str, tuple[float, float]]:
    """Lower and upper bound of every figure. ``sums``: [R, M] per record; ``label`` keeps the tables' draws apart.

    A share of 0 or 1 never varies in a resample; its open side is then the exact binomial bound for the n records it is
    counted over, 1 - 0.025^(1/n), so that 30 records without a difference do not pass for certainty.
    """
    records = len(sums)
    rng = np.random.default_rng([seed, int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "big")])
    per_chunk = max(1, _CHUNK_WEIGHTS // max(records, 1))
    drawn: dict[str, list[FloatArray]] = {}
    for start in range(0, RESAMPLES, per_chunk):
        count = min(per_chunk, RESAMPLES - start)
        picks = rng.integers(0, records, (count, records))
        picks += np.arange(count)[:, None] * records
        weights = np.bincount(picks.ravel(), minlength=count * records).reshape(count, records)
        for name, values in figures(names, weights.astype(np.float64) @ sums).items():
            drawn.setdefault(name, []).append(values)
    found = {name: _percentiles(np.concatenate(parts)) for name, parts in drawn.items()}
    point = figures(names, sums.sum(axis=0))
    for name in ("agreement", "agreement_clear", "accuracy", "accuracy_reference", "confident_flip_rate"):
        if math.isnan(point[name]):
            continue
        counted = int(np.count_nonzero(sums[:, names.index(RATIOS[name][1])]))
        open_side = 1 - ((1 - COVERAGE) / 2) ** (1 / counted)
        if float(point[name]) == 1:
            found[name] = (1 - open_side, 1.0)
        elif float(point[name]) == 0:
            found[name] = (0.0, open_side)
    return found


def _percentiles(values: FloatArray) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan, math.nan
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)
