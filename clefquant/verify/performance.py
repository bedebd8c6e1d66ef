"""Speed of a backend that really runs: which records are timed alone, and the figures from their times."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from clefquant.calibration.stored import StoredRecord
from clefquant.verify.tables import LENGTH_EDGES

PER_LENGTH = 20
WARM_UP = 3


def length_bucket(tokens: int) -> str:
    """Label of the prompt-length bucket, as in the report's tables."""
    lower = 0
    for edge in LENGTH_EDGES:
        if tokens <= edge:
            return f"{lower:,}–{edge:,}" if lower else f"≤ {edge:,}"
        lower = edge
    return f"> {lower:,}"


def latency_sample(records: Sequence[StoredRecord]) -> list[int]:
    """Indices of the records that are timed alone: the first 20 of every length, shortest lengths first."""
    by_bucket: dict[str, list[int]] = {}
    for index in sorted(range(len(records)), key=lambda i: (records[i].tokens, i)):
        by_bucket.setdefault(length_bucket(records[index].tokens), []).append(index)
    return [index for members in by_bucket.values() for index in members[:PER_LENGTH]]


def latency_rows(
    records: Sequence[StoredRecord], sample: Sequence[int], seconds: Sequence[float]
) -> list[dict[str, Any]]:
    """Median and 95th percentile per length, in milliseconds, one request at a time."""
    by_bucket: dict[str, list[tuple[int, float]]] = {}
    for index, time_s in zip(sample, seconds, strict=True):
        by_bucket.setdefault(length_bucket(records[index].tokens), []).append((records[index].tokens, 1000 * time_s))
    return [
        {
            "tokens": bucket,
            "requests": len(rows),
            "median_tokens": int(np.median([tokens for tokens, _ in rows])),
            "p50_ms": round(float(np.percentile([ms for _, ms in rows], 50)), 2),
            "p95_ms": round(float(np.percentile([ms for _, ms in rows], 95)), 2),
        }
        for bucket, rows in by_bucket.items()
    ]


def throughput(records: Sequence[StoredRecord], seconds: float, concurrency: str) -> dict[str, Any]:
    """Records and tokens a second over the whole set."""
    return {
        "records": len(records),
        "concurrency": concurrency,
        "seconds": round(seconds, 3),
        "records_per_s": round(len(records) / seconds, 2),
        "tokens_per_s": round(sum(record.tokens for record in records) / seconds, 1),
    }
