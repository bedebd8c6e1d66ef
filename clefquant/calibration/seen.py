"""What was seen so far, on disk: hashes of the records of a set, and the contents of the sets it must not overlap with.

On disk because a million hashes would otherwise be the only thing that grows with the set.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from clefquant.calibration.stored import read_lines


class Seen:
    """Hashes in a SQLite file; :meth:`commit` makes them last."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("CREATE TABLE IF NOT EXISTS kept (key BLOB PRIMARY KEY) WITHOUT ROWID")
        self._db.execute("CREATE TABLE IF NOT EXISTS held (key BLOB PRIMARY KEY, id TEXT) WITHOUT ROWID")

    def hold(self, sets: Iterable[Path]) -> None:
        """Take in the contents of other sets."""
        for path in sets:
            rows = ((bytes.fromhex(key), line["id"]) for line in read_lines(path) for key in line["content"])
            self._db.executemany("INSERT OR IGNORE INTO held VALUES (?, ?)", rows)
        self._db.commit()

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
        self._db.executemany("INSERT INTO kept VALUES (?)", keys)
        return None

    def commit(self) -> None:
        """Make everything since the last commit last."""
        self._db.commit()

    def close(self) -> None:
        """Close the file; what was not committed is forgotten."""
        self._db.close()
