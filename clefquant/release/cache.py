"""The Hub's local cache where it cannot be written: a full disk, a read-only home, a path that is no folder."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from clefquant.errors import PrerequisiteError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def not_stored(what: str, error: BaseException) -> PrerequisiteError | None:
    """What to tell when ``error`` says that the download of ``what`` could not be kept; None when it says otherwise."""
    if not isinstance(error, OSError) or error.errno not in (*_FULL, *_CLOSED):
        return None
    remedy = "Free space there, or set" if error.errno in _FULL else "Set"
    return PrerequisiteError(
        f"{what} cannot be stored at {error.filename or 'the Hub cache'}: {error.strerror}. "
        f"{remedy} HF_HOME to a folder with space that can be written."
    )


@contextmanager
def storing(what: str) -> Iterator[None]:
    """Raise PrerequisiteError where the block, which downloads ``what``, cannot write the cache."""
    try:
        yield
    except OSError as error:
        if told := not_stored(what, error):
            raise told from error
        raise
