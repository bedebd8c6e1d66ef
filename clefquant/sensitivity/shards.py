"""The evaluation set in shards: fixed groups of records that are probed, committed and averaged together.

A shard's batches depend on its records alone, so that a resumed, parallel or serial sweep computes the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from clefquant.calibration.stored import StoredRecord, to_line
from clefquant.errors import InputError
from clefquant.release.artefact import sha256_json
from clefquant.release.load import grouped

#: Tokens of one shard: what a probe can lose when the sweep is killed.
DEFAULT_SHARD_TOKENS = 65_536
_FEWEST_REGROUPED = 8
#: Tokens of a padded batch: on a CPU padding costs more than larger batches gain, a GPU wants them large.
BATCH_TOKENS = {"cpu": 1024, "cuda": 16_384}


@dataclass(frozen=True)
class Shard:
    """Records probed together, and how many tokens a padded batch may hold."""

    records: tuple[StoredRecord, ...]
    batch_tokens: int

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the records as stored and of what decides their batches."""
        return sha256_json([self.batch_tokens, [to_line(record) for record in self.records]])

    @property
    def tokens(self) -> int:
        """Prompt tokens."""
        return sum(record.tokens for record in self.records)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the records of every batch; a record with media has a batch of its own."""
        return tuple(map(tuple, grouped([record.encoded for record in self.records], self.batch_tokens)))

    def regrouped(self) -> "Shard":
        """The first quarter of the records in other batches: each alone, or together when they already are alone."""
        some = self.records[: max(_FEWEST_REGROUPED, len(self.records) // 4)]
        alone = all(len(group) == 1 for group in self.groups)
        return Shard(some, 2 * max(record.tokens for record in some) if alone else 1)


def make_shards(
    records: Sequence[StoredRecord], batch_tokens: int, shard_tokens: int, fewest: int = 1
) -> tuple[Shard, ...]:
    """Deal the records to ``fewest`` or more shards of about ``shard_tokens``, in stored order, so that each is a
    sample of the whole set."""
    if not records:
        raise InputError("the evaluation set has no records; build one with `clefquant calibrate --split evaluation`.")
    count = max(fewest, round(sum(record.tokens for record in records) / shard_tokens))
    count = min(count, len(records))
    return tuple(Shard(tuple(records[start::count]), batch_tokens) for start in range(count))


def check_disjoint(calibration: Sequence[StoredRecord], evaluation: Sequence[StoredRecord]) -> None:
    """Refuse evaluation records that calibration has seen: the same prompt, or the same content under other
    questions."""
    seen: set[object] = {key for record in calibration for key in _identities(record)}
    shared = [record.record_id for record in evaluation if seen.intersection(_identities(record))]
    if shared:
        raise InputError(
            f"{len(shared)} evaluation records are also in the calibration set, first {shared[0]}; figures on them "
            "would flatter. Build the sets from different splits (`clefquant calibrate --split evaluation`)."
        )


def _identities(record: StoredRecord) -> tuple[object, ...]:
    return (tuple(record.encoded.input_ids), *record.content)
