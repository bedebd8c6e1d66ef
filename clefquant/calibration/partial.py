"""A set that is being built: a hidden sibling of its final folder that a second run of the same build goes on with.

Every ``CHECKPOINT_RECORDS`` drafts the files are flushed and the hashes committed, together with the state: how many
drafts of which source were used up, the counts, and the length of each file. What was written after that is cut off on
resuming.
"""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from clefquant.calibration.prepare import Outcome
from clefquant.calibration.seen import Seen
from clefquant.calibration.statistics import SourceCounts
from clefquant.calibration.stored import MEDIA_FOLDER, RECORDS_FILE, REJECTED_FILE
from clefquant.release.artefact import check_new_folder, new_file, write_json

CHECKPOINT_RECORDS = 1000
_JOB, _SEEN = "job.json", "seen.sqlite"


@dataclass
class Partial:
    """Open files and counts of a build in progress. ``source`` and ``used``: source number and drafts of it used up."""

    folder: Path
    sources: list[SourceCounts] = field(default_factory=list)
    source: int = 0
    used: int = 0
    resumed: bool = False

    def __post_init__(self) -> None:
        self._records = self._open(RECORDS_FILE)
        self._rejected = self._open(REJECTED_FILE)
        self.seen = Seen(self.folder / _SEEN)
        self._since = 0

    def write(self, outcome: Outcome) -> None:
        """Add an accepted record and its media."""
        for name, data in outcome.media.items():
            path = self.folder / name
            if not path.exists():
                with new_file(path) as work:
                    work.write_bytes(data)
        self._records.write(outcome.line + "\n")

    def reject(self, outcome: Outcome) -> None:
        """Note a record that is left out."""
        value = {"place": outcome.place, "id": outcome.record_id, "reason": outcome.fault}
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
        self._rejected.write(text + "\n")

    def step(self) -> None:
        """Count a draft as used up, and save now and then."""
        self.used += 1
        self._since += 1
        if self._since >= CHECKPOINT_RECORDS:
            self.save()

    def save(self) -> None:
        """Make everything so far last."""
        self._since = 0
        for file in (self._records, self._rejected):
            file.flush()
        state = {
            "source": self.source,
            "used": self.used,
            "bytes": {RECORDS_FILE: self._records.tell(), REJECTED_FILE: self._rejected.tell()},
            "sources": [counts.to_json() for counts in self.sources],
        }
        self.seen.commit(state)

    def close(self) -> None:
        """Close the files, keep the folder."""
        self._records.close()
        self._rejected.close()
        self.seen.close()

    def finish(self, target: Path) -> None:
        """Drop what only the build needed and give the folder its name."""
        for name in (_JOB, _SEEN):
            (self.folder / name).unlink(missing_ok=True)
        if target.exists():
            target.rmdir()
        os.replace(self.folder, target)

    def _open(self, name: str) -> TextIO:
        return (self.folder / name).open("a", encoding="utf-8", newline="\n")


def open_partial(target: Path, job: dict[str, Any], restart: bool) -> Partial:
    """Go on with the build of ``job`` for ``target``, or start it. InputError when ``target`` is taken."""
    check_new_folder(target)
    folder = target.parent / f".{target.name}.building"
    state = None if restart else _state(folder, job)
    if state is None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(folder / _JOB, job)
        return Partial(folder)
    for name, size in state["bytes"].items():
        os.truncate(folder / name, size)
    sources = [SourceCounts.from_json(value) for value in state["sources"]]
    return Partial(folder, sources, state["source"], state["used"], resumed=True)


def prune_media(folder: Path, used: set[str]) -> None:
    """Remove media that a cut-off run wrote and the finished one does not use."""
    for file in (folder / MEDIA_FOLDER).glob("*"):
        if f"{MEDIA_FOLDER}/{file.name}" not in used:
            file.unlink()


def _state(folder: Path, job: dict[str, Any]) -> dict[str, Any] | None:
    """The saved state when it is of this very job and its files are whole; None: start anew."""
    try:
        if not (folder / _SEEN).is_file() or json.loads((folder / _JOB).read_text(encoding="utf-8")) != job:
            return None
        with closing(Seen(folder / _SEEN)) as seen:
            state = seen.state()
    except (OSError, ValueError, sqlite3.DatabaseError):
        return None
    if state is None:
        return None
    whole = all(
        (folder / name).is_file() and (folder / name).stat().st_size >= size for name, size in state["bytes"].items()
    )
    return state if whole else None
