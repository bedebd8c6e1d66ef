"""What was seen so far, on disk: hashes of the records of a set, and the contents of the sets it must not overlap with.

On disk because a million hashes would otherwise be the only thing that grows with the set. How far the build has come
is kept beside them: one transaction, so that a kill never leaves the hashes of records that the state does not count.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clefquant.calibration.stored import read_lines
from clefquant.release.database import writing


class Seen:
    """Hashes in a SQLite file, and the state of the build; :meth:`commit` makes them last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._db = sqlite3.connect(path)
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY) WITHOUT ROWID")
            self._db.execute("CREATE TABLE IF NOT EXISTS held (key BLOB PRIMARY KEY, id TEXT) WITHOUT ROWID")
            self._db.execute("CREATE TABLE IF NOT EXISTS state (value TEXT)")

    def hold(self, sets: Iterable[Path]) -> None:
        """Take in the contents of other sets."""
        for path in sets:
            rows = ((bytes.fromhex(key), line["id"]) for line in read_lines(path) for key in line["content"])
            with writing(self._path):
                self._db.executemany("INSERT OR IGNORE INTO held VALUES (?, ?)", rows)

    def held_by(self, content: Sequence[str]) -> str | None:
        """Id of a record of another set that shares one of the contents."""
        for key in content:
            found = self._db.execute("SELECT id FROM held WHERE key = ?", (bytes.fromhex(key),)).fetchone()
            if found:
                return str(found[0])
        return None

    def add(self, sha256: str, record_id: str) -> str | None:
        """Remember a record and its id; what is there already: ``"record"``, ``"id"`` or None."""
        for what, key in (("record", bytes.fromhex(sha256)), ("id", b"id" + record_id.encode())):
            if self._db.execute("SELECT 1 FROM kept WHERE key = ?", (key,)).fetchone():
                return what
        keys = [(bytes.fromhex(sha256),), (b"id" + record_id.encode(),)]
        with writing(self._path):
            self._db.executemany("INSERT INTO kept VALUES (?)", keys)
        return None

    def commit(self, state: dict[str, Any]) -> None:
        """Make everything since the last commit last, and ``state`` (JSON) with it."""
        with writing(self._path):
            self._db.execute("DELETE FROM state")
            self._db.execute("INSERT INTO state VALUES (?)", (json.dumps(state),))
            self._db.commit()

    def state(self) -> dict[str, Any] | None:
        """What the last :meth:`commit` kept; None before the first."""
        found = self._db.execute("SELECT value FROM state").fetchone()
        return None if found is None else dict(json.loads(found[0]))

    def close(self) -> None:
        """Close the file; what was not committed is forgotten."""
        self._db.close()
