"""One command at a time in a folder: a lock that the kernel releases when its holder ends, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clefquant.errors import InputError


@contextmanager
def locked(folder: Path, file: Path) -> Iterator[None]:
    """Hold the lock ``file``, which is there meanwhile. InputError, naming ``folder``, when another process holds it.

    On a file system without locks nothing is refused.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as handle:
        if not _taken(handle.fileno(), file):
            raise InputError(
                f"another command is writing {folder}. Wait until it ends and repeat this one, or choose another --out."
            )
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _taken(descriptor: int, file: Path) -> bool:
    """Whether the lock is ours now: not another's, and not of a file that its holder removed when it ended."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # there are no locks here
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
