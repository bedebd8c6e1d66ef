"""Three parts of the evaluation set: one to score units, one to choose a layout, one to say honestly what the choice
is worth."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError

#: Shares of the records: scoring, choosing; the rest is for the honest figure.
SHARES = (0.5, 0.25)
_FEWEST_GROUPS = 3


class Parts(NamedTuple):
    """Disjoint records. ``sweep``: units are scored on them; ``choice``: candidates are compared on them;
    ``held_out``: used for nothing but the final figure."""

    sweep: list[StoredRecord]
    choice: list[StoredRecord]
    held_out: list[StoredRecord]


def split_evaluation(records: Sequence[StoredRecord], seed: int = 0) -> Parts:
    """Split within every source, whole groups at a time, by a hash of the group's name: the same for any order of the
    records.

    Raises InputError when there are fewer than three groups.
    """
    if not records:
        raise InputError("the evaluation set has no records; build one with `clefquant calibrate --split evaluation`.")
    sources: dict[str, dict[str, list[StoredRecord]]] = {}
    for record in records:
        sources.setdefault(record.source, {}).setdefault(record.group or record.record_id, []).append(record)
    groups = [
        (source, name, members)
        for source, found in sorted(sources.items())
        for name, members in sorted(found.items(), key=lambda item: _hash(seed, source, item[0]))
    ]
    if len(groups) < _FEWEST_GROUPS:
        raise InputError(
            f"the evaluation set has {len(groups)} independent groups of records; scoring, choosing and the final "
            f"figure need one each, at least {_FEWEST_GROUPS}. Build a larger set."
        )
    parts = Parts([], [], [])
    # dealt in turn across sources, so that small sources reach every part and the shares hold for the whole set
    targets = (SHARES[0], SHARES[1], 1 - sum(SHARES))
    for _, _, members in groups:
        lacking = [share - len(part) / len(records) for share, part in zip(targets, parts, strict=True)]
        parts[lacking.index(max(lacking))].extend(members)
    assert all(parts), "each part lacks most in turn"
    return parts


def _hash(seed: int, source: str, group: str) -> str:
    return hashlib.sha256(f"{seed}\x1f{source}\x1f{group}".encode()).hexdigest()
