"""From committed probes to the table: metrics per question, means with standard errors, groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clefquant.calibration.stored import StoredRecord
from clefquant.sensitivity.metrics import QuestionMetrics, mean_over_records, question_metrics
from clefquant.sensitivity.store import Probe
from clefquant.sensitivity.table import Entry, Figure

TYPE_NAMES = ("noul", "choice", "score")
#: Upper ends, in tokens, of the length buckets.
LENGTH_BUCKETS = (256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True)
class Questions:
    """The questions of a sequence of records, in order."""

    records: tuple[StoredRecord, ...]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Options of every question."""
        return np.array([len(q.option_ids) for r in self.records for q in r.encoded.questions])

    @cached_property
    def types(self) -> NDArray[np.int64]:
        """Type number of every question."""
        return np.array([q.question_type for r in self.records for q in r.encoded.questions])

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """Index of the record of every question."""
        return np.repeat(np.arange(len(self.records)), [len(r.encoded.questions) for r in self.records])

    @cached_property
    def labels(self) -> Mapping[str, NDArray[np.bool_]]:
        """Which questions belong to each ``source:…``, ``type:…`` and ``length:…``."""
        sources = np.array([r.source for r in self.records])[self.owners]
        lengths = np.array([_bucket(r.tokens) for r in self.records])[self.owners]
        types = np.array(TYPE_NAMES)[self.types]
        found = {}
        for kind, values in (("source", sources), ("type", types), ("length", lengths)):
            found.update({f"{kind}:{value}": values == value for value in sorted(set(values.tolist()))})
        return found

    @cached_property
    def counted(self) -> list[int]:
        """Per record, its questions with at least two options."""
        counts: list[int] = np.bincount(self.owners, self.sizes > 1, len(self.records)).astype(int).tolist()
        return counts

    def metrics(self, reference: NDArray[np.float32], changed: NDArray[np.float32]) -> QuestionMetrics:
        """Metrics of every question from flat logits."""
        return question_metrics(reference.astype(np.float64), changed.astype(np.float64), self.sizes, self.types)


def tabulate(
    unit: str, format_name: str, questions: Questions, reference: Sequence[Probe], changed: Sequence[Probe]
) -> Entry:
    """One entry from the probes of all shards; ``questions``: of the shards' records, one after another."""
    failed = sum(probe.failed for probe in changed)
    if failed:
        return Entry(unit=unit, format=format_name, failed_logits=failed)
    before, after = (np.concatenate([probe.logits for probe in probes]) for probes in (reference, changed))
    metrics = questions.metrics(before, after)
    groups = {name: _figure(metrics.kl[mask], questions.owners[mask]) for name, mask in questions.labels.items()}
    per_record = np.bincount(questions.owners, np.nan_to_num(metrics.kl), len(questions.records))
    return Entry(
        unit=unit,
        format=format_name,
        figures={
            name: figure for name, values in metrics._asdict().items() if (figure := _figure(values, questions.owners))
        },
        groups={name: figure for name, figure in groups.items() if figure},
        record_kl=per_record.tolist(),
    )


def _figure(values: NDArray[np.float64], owners: NDArray[np.int64]) -> Figure | None:
    mean = mean_over_records(values, owners)
    return Figure(value=mean.value, error=mean.error, questions=mean.questions) if mean.questions else None


def _bucket(tokens: int) -> str:
    return next((f"<={limit}" for limit in LENGTH_BUCKETS if tokens <= limit), f">{LENGTH_BUCKETS[-1]}")
