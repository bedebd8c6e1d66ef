"""Three parts of the evaluation set: one to score units, one to choose a layout, one to say honestly what the choice
is worth."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError

#: Shares of the records: scoring, choosing; the rest is for the honest figure.
SHARES = (0.5, 0.25)


class Parts(NamedTuple):
    """Disjoint records. ``sweep``: units are scored on them; ``choice``: candidates are compared on them;
    ``held_out``: used for nothing but the final figure."""

    sweep: list[StoredRecord]
    choice: list[StoredRecord]
    held_out: list[StoredRecord]


def split_evaluation(records: Sequence[StoredRecord], seed: int = 0) -> Parts:
    """Split every source and group in these shares, records that share content staying together.

    The order within a source is that of a hash, so the split does not depend on the order of the records. Raises
    InputError when there are fewer than three records of different content.
    """
    if not records:
        raise InputError("the evaluation set has no records; build one with `clefquant calibrate --split evaluation`.")
    blocks = sorted(_blocks(records), key=lambda block: (block[0].source, block[0].group, _hash(seed, block[0])))
    if len(blocks) < len(Parts._fields):
        raise InputError(
            f"the evaluation set has {len(blocks)} records of different content; scoring, choosing and the final "
            f"figure need one each, at least {len(Parts._fields)}. Build a larger set."
        )
    parts = Parts([], [], [])
    targets = (*SHARES, 1 - sum(SHARES))
    dealt = 0
    for block in blocks:
        dealt += len(block)
        # to the part furthest behind its share of what is dealt: every source reaches every part
        behind = [share * dealt - len(part) for share, part in zip(targets, parts, strict=True)]
        parts[behind.index(max(behind))].extend(block)
    return parts


def _blocks(records: Sequence[StoredRecord]) -> list[list[StoredRecord]]:
    """Records joined by shared content, each block sorted by record id."""
    owner: dict[str, int] = {}
    blocks: dict[int, list[StoredRecord]] = {}
    for number, record in enumerate(records):
        joined = {owner[key] for key in record.content if key in owner}
        home = min(joined, default=number)
        members = [member for block in sorted(joined) for member in blocks.pop(block)]
        blocks[home] = [*members, record]
        owner.update({key: home for member in blocks[home] for key in member.content})
    return [sorted(block, key=lambda record: record.record_id) for block in blocks.values()]


def _hash(seed: int, record: StoredRecord) -> str:
    return hashlib.sha256(f"{seed}\x1f{record.source}\x1f{record.record_id}".encode()).hexdigest()
