"""What is counted while a set is built, source by source: bounded in size, JSON, so that a resumed build goes on."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from clefquant.calibration.prepare import Outcome

EXAMPLES_KEPT = 20


@dataclass
class SourceCounts:
    """Counts of one source. ``lengths``: prompt tokens to number of records; ``asked`` None: all there are."""

    name: str
    kind: str
    asked: int | None
    license: str = "unknown"
    origin: dict[str, Any] = field(default_factory=dict)
    max_state_tokens: int | None = None
    records: int = 0
    tokens: int = 0
    rejected: int = 0
    duplicates: int = 0
    overlapping: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    options: int = 0
    questions: dict[str, int] = field(default_factory=dict)
    odd: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    longest: list[Any] = field(default_factory=lambda: [0, ""])
    rejections: list[dict[str, str]] = field(default_factory=list)
    overlaps: list[list[str]] = field(default_factory=list)
    skipped: str = ""

    def accept(self, outcome: Outcome) -> None:
        """Count a record of the set."""
        self.records += 1
        self.tokens += outcome.tokens
        self.truncated += outcome.lost_tokens > 0
        self.lost_tokens += outcome.lost_tokens
        self.options += outcome.options
        self.questions = dict(Counter(self.questions) + Counter(outcome.types))
        for kind in outcome.odd:
            self.odd[kind] = self.odd.get(kind, 0) + 1
        self.lengths[outcome.tokens] = self.lengths.get(outcome.tokens, 0) + 1
        if outcome.tokens > self.longest[0]:
            self.longest = [outcome.tokens, outcome.record_id]

    def reject(self, outcome: Outcome) -> None:
        """Count a record that is left out."""
        self.rejected += 1
        if len(self.rejections) < EXAMPLES_KEPT:
            self.rejections.append({"place": outcome.place, "id": outcome.record_id, "reason": outcome.fault or ""})

    def overlap(self, record_id: str, other_id: str) -> None:
        """Count a record whose content is in the other set."""
        self.overlapping += 1
        if len(self.overlaps) < EXAMPLES_KEPT:
            self.overlaps.append([record_id, other_id])

    def to_json(self) -> dict[str, Any]:
        """As a JSON object (lengths with text keys, in order)."""
        return {**asdict(self), "lengths": {str(length): self.lengths[length] for length in sorted(self.lengths)}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "SourceCounts":
        """From :meth:`to_json`."""
        return cls(**{**value, "lengths": {int(length): number for length, number in value["lengths"].items()}})


def merged_lengths(sources: list[SourceCounts]) -> dict[int, int]:
    """Prompt lengths over all sources, shortest first."""
    total: Counter[int] = Counter()
    for source in sources:
        total.update(source.lengths)
    return dict(sorted(total.items()))


def quantile(lengths: dict[int, int], share: float) -> int:
    """The smallest length that at least ``share`` of the records do not exceed (0 without records)."""
    needed, seen = share * sum(lengths.values()), 0
    for length, number in sorted(lengths.items()):
        seen += number
        if seen >= needed:
            return length
    return 0
