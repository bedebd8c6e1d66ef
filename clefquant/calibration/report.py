"""The report of a build: totals, sources, lengths, and the warnings a reader should act on."""

from pathlib import Path
from typing import Any, NamedTuple

from clefquant.calibration.statistics import SourceCounts, merged_lengths, quantile

#: Upper edges of the length histogram in tokens.
EDGES_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
SHORT_SHARE = 0.5


class Against(NamedTuple):
    """Another set that must not overlap with this one."""

    path: Path
    records: int
    longest_tokens: int


def make_report(
    name: str,
    split: str,
    sources: list[SourceCounts],
    against: list[Against],
    dropped: bool,
    seconds: float,
) -> dict[str, Any]:
    """The report as JSON: what :mod:`clefquant.cli.calibrate` shows and ``report.json`` keeps."""
    lengths = merged_lengths(sources)
    questions: dict[str, int] = {}
    for source in sources:
        for kind, number in source.questions.items():
            questions[kind] = questions.get(kind, 0) + number
    longest = max((source.longest for source in sources), default=[0, ""])
    return {
        "name": name,
        "split": split,
        "records": sum(source.records for source in sources),
        "tokens": sum(source.tokens for source in sources),
        "questions": questions,
        "options": sum(source.options for source in sources),
        "truncated": sum(source.truncated for source in sources),
        "rejected": sum(source.rejected for source in sources),
        "duplicates": sum(source.duplicates for source in sources),
        "overlapping": sum(source.overlapping for source in sources),
        "lengths": {
            "shortest": next(iter(lengths), 0),
            "median": quantile(lengths, 0.5),
            "p95": quantile(lengths, 0.95),
            "longest": longest[0],
            "longest_id": longest[1],
            "histogram": histogram(lengths),
        },
        "sources": [
            {key: value for key, value in source.to_json().items() if key not in ("lengths", "max_state_tokens")}
            for source in sources
        ],
        "against": [
            {"path": str(item.path), "records": item.records, "longest": item.longest_tokens} for item in against
        ],
        "overlap": "dropped" if dropped else "refused",
        "warnings": warnings(split, sources, against, dropped),
        "seconds": round(seconds, 2),
    }


def histogram(lengths: dict[int, int]) -> list[dict[str, int]]:
    """Records by length: bins of doubling width from the shortest to the longest, ``up_to`` tokens included."""
    bins, low = [], 0
    for edge in EDGES_TOKENS:
        if edge >= min(lengths, default=0) and low < max(lengths, default=0):
            bins.append({"up_to": edge, "records": sum(n for length, n in lengths.items() if low < length <= edge)})
        low = edge
    return bins


def warnings(split: str, sources: list[SourceCounts], against: list[Against], dropped: bool) -> list[str]:
    """What a reader should know or act on, most serious first."""
    found = []
    longest = max((source.longest[0] for source in sources), default=0)
    for other in against if split == "calibration" else ():
        if longest < SHORT_SHARE * other.longest_tokens:
            found.append(
                f"the longest record has {longest:,} tokens, the longest of {other.path} {other.longest_tokens:,}: "
                "long inputs would be calibrated by guessing. Add a source of long records (see the mixture `long`)."
            )
    for source in sources:
        if source.skipped:
            found.append(f"{source.name}: left out: {source.skipped}")
        elif source.asked is not None and source.records < source.asked:
            found.append(
                f"{source.name}: {source.records:,} records of {source.asked:,} asked; the source has no more."
            )
        if source.rejected:
            first = source.rejections[0]
            found.append(f"{source.name}: {source.rejected:,} rejected, first {first['place']}: {first['reason']}")
        if source.truncated:
            found.append(
                f"{source.name}: states that did not fit and lost their end: {source.truncated:,} "
                f"({source.lost_tokens:,} tokens); raise max_length or shorten them."
            )
        for kind, number in sorted(source.odd.items()):
            found.append(f"{source.name}: records with {kind}: {number:,}.")
        if source.duplicates:
            found.append(f"{source.name}: {source.duplicates:,} duplicates left out.")
        if source.overlapping and dropped:
            found.append(f"{source.name}: {source.overlapping:,} records left out that the other set holds too.")
    return found
