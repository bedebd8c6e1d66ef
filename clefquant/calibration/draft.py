"""What a source hands on: one record with its place in the source, or the reason why there is none."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Draft:
    """One record of a source before it is checked and encoded.

    ``place``: where it came from, for messages (``tickets.jsonl line 17``). ``record``: as it will be stored; images
    and videos in any form :mod:`clefquant.calibration.media` opens. ``base``: the folder that media paths are relative
    to and may not leave. ``fault``: why it cannot be a record (then ``record`` is empty).
    """

    place: str
    record_id: str
    record: dict[str, Any] = field(default_factory=dict)
    answers: Any = None
    group: str = ""
    base: Path | None = None
    fault: str | None = None
