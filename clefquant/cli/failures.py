"""What a failure means for the person at the keyboard: a message and an exit code, or a defect of ours."""

import errno

import typer

from clefquant.errors import ClefquantError, InputError, PrerequisiteError

#: Wrong usage, whichever Click it is that Typer brings.
_UsageError = typer.BadParameter.__mro__[1]
INTERRUPTED = 130
_GO_ON = "interrupted; finished work is kept, run the same command again to continue"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_WRONG_PATH = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)


def explain(error: BaseException) -> tuple[str, int] | None:
    """Message and exit code of a failure that a user can mend; None when it is a defect.

    An empty message: the failure was shown already.
    """
    if isinstance(error, ClefquantError):
        return str(error), error.exit_code
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return _GO_ON, INTERRUPTED
    if isinstance(error, _UsageError):
        return _usage(error), InputError.exit_code
    if isinstance(error, OSError):
        return _system(error)
    return None


def _usage(error: BaseException) -> str:
    message: str = error.format_message()  # type: ignore[attr-defined]  # Click's, see above
    if type(error).__name__ == "NoArgsIsHelpError":  # its help is on the screen
        return ""
    context = getattr(error, "ctx", None)
    stop = "" if message.endswith((".", "?", "!")) else "."
    return f"{message}{stop} See `{context.command_path if context else 'clefquant'} --help`."


def _system(error: OSError) -> tuple[str, int] | None:
    where = error.filename or "writing"
    if error.errno in _NO_SPACE:
        return f"{where}: {error.strerror}. Free space or choose another place.", PrerequisiteError.exit_code
    if error.errno in _FORBIDDEN:
        return f"{where}: {error.strerror}. Choose a place that you may write to.", PrerequisiteError.exit_code
    if error.errno in _WRONG_PATH:
        return f"{where}: {error.strerror}. Check the path.", InputError.exit_code
    return None
