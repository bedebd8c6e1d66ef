"""Work in progress that a killed process left: told from what is in use by a lock, which ends with its process."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".partial"


@contextmanager
def in_use(made: Path) -> Iterator[Path]:
    """Lock ``made``, a new file or folder, and only then add ``SUFFIX`` to its name: it never has that name unlocked.

    Yields the path with the suffix. The lock ends with the block or the process.
    """
    held = os.open(made, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system has locks; where none are, nothing is removed either
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield made.rename(made.with_name(made.name + SUFFIX))
    finally:
        os.close(held)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove what a killed process had :func:`in_use` in ``folder``; ``pattern`` ends in the suffix."""
    for left in folder.glob(pattern):
        with suppress(OSError):
            held = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            finally:
                os.close(held)
