"""How long work reports itself: the library counts, the command line draws.

Library functions take ``progress: Progress = SILENT`` and never print.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol


class Task(Protocol):
    """One counted piece of work."""

    def advance(self, steps: float = 1) -> None:
        """Count ``steps`` more units as done."""

    def note(self, text: str) -> None:
        """Show a short remark beside the bar (the current layer, say)."""


class Progress(Protocol):
    """Where long work reports to."""

    def task(self, title: str, total: float | None, unit: str = "") -> "TaskContext":
        """Open a counted task; use as a context manager. ``unit`` names what is counted."""

    def warn(self, text: str) -> None:
        """Tell the user something that does not stop the work."""


class TaskContext(Protocol):
    """Context manager that yields a :class:`Task`."""

    def __enter__(self) -> Task: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class _SilentTask:
    def advance(self, steps: float = 1) -> None: ...
    def note(self, text: str) -> None: ...


class _Silent:
    @contextmanager
    def _open(self) -> Iterator[Task]:
        yield _SilentTask()

    def task(self, title: str, total: float | None, unit: str = "") -> TaskContext:
        return self._open()

    def warn(self, text: str) -> None: ...


SILENT: Progress = _Silent()
