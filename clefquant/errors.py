"""The failures a user can cause or mend. Each carries the exit code of the command line.

A message says what was found, what is allowed and what to do next. Anything else that is
raised is a defect of ours and keeps its traceback.
"""


class ClefquantError(Exception):
    """Base of every failure that is shown without a traceback."""

    exit_code = 2


class InputError(ClefquantError):
    """Wrong usage or wrong input: a path, a value, a file's content (exit code 2)."""


class PrerequisiteError(ClefquantError):
    """Something the machine lacks: a package, disk, memory, a GPU (exit code 3)."""

    exit_code = 3


class CheckFailed(ClefquantError):
    """An audit, gate or comparison ran to its end and found a fault (exit code 1)."""

    exit_code = 1
