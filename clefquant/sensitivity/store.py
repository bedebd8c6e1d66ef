"""Finished probes on disk: one committed sqlite row each, so that a killed sweep loses the probe it was in and no
other.

A row's key is the hash of everything that decides its logits (model, records, unit, format, input scales, engine);
rows of other inputs stay in the file and are never read.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clefquant.errors import InputError
from clefquant.release.database import writing

STORE_VERSION = 1
_CREATE = """
CREATE TABLE IF NOT EXISTS probe (
  key TEXT PRIMARY KEY, subject TEXT NOT NULL, format TEXT NOT NULL, shard TEXT NOT NULL, failed INTEGER NOT NULL,
  seconds REAL NOT NULL, logits BLOB NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Probe:
    """Logits of one shard under one change. ``subject``: the unit, or what else was changed; ``logits``: float32 [N].

    ``failed``: how many logits are NaN or infinite; a probe with any is never averaged.
    """

    key: str
    subject: str
    format: str
    shard: str
    failed: int
    seconds: float
    logits: NDArray[np.float32]


class ProbeStore:
    """The sqlite file of a sweep. A context manager that closes it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        try:
            with writing(path):
                self._database = sqlite3.connect(path)
                version = self._database.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, STORE_VERSION):
                    raise InputError(
                        f"{path} has version {version}, this clefquant reads {STORE_VERSION}; use another --out."
                    )
                with self._database:
                    self._database.execute(_CREATE)
                    self._database.execute(f"PRAGMA user_version = {STORE_VERSION}")
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path} cannot be read as a sweep ({error}); remove it or use another --out.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, probe: Probe) -> None:
        """Commit a probe; one with the same key is kept as it is."""
        logits = np.ascontiguousarray(probe.logits, dtype="<f4").tobytes()
        row = (probe.key, probe.subject, probe.format, probe.shard, probe.failed, probe.seconds, logits)
        with writing(self._path), self._database:
            self._database.execute("INSERT OR IGNORE INTO probe VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def have(self, keys: Iterable[str]) -> set[str]:
        """Those of ``keys`` that are committed."""
        wanted = set(keys)
        return {key for (key,) in self._database.execute("SELECT key FROM probe") if key in wanted}

    def get(self, key: str) -> Probe:
        """The committed probe of ``key``."""
        row = self._database.execute("SELECT * FROM probe WHERE key = ?", (key,)).fetchone()
        subject, format_name, shard, failed, seconds, logits = row[1:]
        return Probe(key, subject, format_name, shard, failed, seconds, np.frombuffer(logits, dtype="<f4"))
