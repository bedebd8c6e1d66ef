"""SQLite files: what the machine refuses is said as for other files."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clefquant.errors import PrerequisiteError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """PrerequisiteError when SQLite cannot write ``path``: the disk is full, another process holds it."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise PrerequisiteError(f"{path} cannot be written: {error}. Free space or choose another place.") from error
