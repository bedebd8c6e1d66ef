"""What people and programs see: Rich on stderr, one JSON value on stdout with ``--json``, plain lines without a
terminal.
"""

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.segment import Segments
from rich.table import Column, Table
from rich.text import Text

from clefquant import progress as work
from clefquant.cli.failures import INTERRUPTED
from clefquant.progress import TaskContext

_PLAIN_LINE_EVERY_S = 10.0
_ANY_WIDTH = 1000
_WIDE = 80  # columns from which a bar and a remark have room


class _Rate(ProgressColumn):
    """Units per second, in the task's own unit."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(
            ""
            if not speed
            else f"{speed:,.1f} {task.fields['unit']}/s"
            if speed < 100
            else f"{speed:,.0f} {task.fields['unit']}/s"
        )


@dataclass
class Output:
    """Where a command reports. ``as_json``: the result goes to stdout as JSON; ``quiet``: errors alone are shown."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    printed: bool = False  # the one JSON value is out

    def say(self, text: str | Text = "", style: str | None = None) -> None:
        """A line for people, on stderr; as it is: names and paths with ``[brackets]`` are no markup."""
        if not self.quiet:
            self.console.print(text, style=style, soft_wrap=True, markup=False, emoji=False)

    def warn(self, text: str) -> None:
        """A line about something that did not stop the work; shown even when quiet."""
        self.console.print(Text("warning: ", style="yellow") + Text(text), soft_wrap=True)

    def task(self, title: str, total: float | None, unit: str = "") -> TaskContext:
        """A counted task: a bar on a terminal, a line now and then elsewhere."""
        if self.quiet:
            return work.SILENT.task(title, total, unit)
        return self._bar(title, total, unit) if self.draws else self._lines(title, total, unit)

    @property
    def draws(self) -> bool:
        """Whether bars can move: a terminal that is not ``TERM=dumb``."""
        return self.console.is_terminal and not self.console.is_dumb_terminal and not self.quiet

    def table(self, table: Table) -> None:
        """A table at its full width: on a narrow terminal lines are wrapped, but no figure is cut."""
        if not self.quiet:
            wide = self.console.options.update(max_width=_ANY_WIDTH)
            lines = Segments(
                self.console.render(table, wide.update(width=self.console.measure(table, options=wide).maximum))
            )
            self.console.print(lines, crop=False)

    def done(
        self, result: dict[str, Any], *, wrote: dict[str, Path] | None = None, next_command: Sequence[object] = ()
    ) -> None:
        """End a command: the paths it wrote and the next command for people, ``result`` for programs.

        ``next_command``: the arguments after ``clefquant``; shown so that a shell takes them as they are.
        """
        paths = wrote or {}
        if self.as_json:
            self._print({**result, "paths": {name: str(path) for name, path in paths.items()}})
        for name, path in paths.items():
            self.say(Text(name, style="bold") + Text(f"  {path}"))
        if next_command:
            text = Text("next: ", style="dim") + Text(shlex.join(["clefquant", *map(str, next_command)]))
            self.say(text)

    def failed(self, message: str, code: int, *, told: bool = False) -> None:
        """Say what went wrong, unless it is ``told`` otherwise; for programs too, unless a result was printed."""
        if message and not told:
            start = "" if code == INTERRUPTED else "error: "
            self.console.print(start + message, markup=False, soft_wrap=True)
        if self.as_json and not self.printed:
            self._print({"error": {"message": message, "exit_code": code}})

    def _print(self, value: dict[str, Any]) -> None:
        self.printed = True
        print(json.dumps(value, ensure_ascii=False, default=str))

    @contextmanager
    def _bar(self, title: str, total: float | None, unit: str) -> Iterator[work.Task]:
        with make_bars(self.console) as bars:
            yield Bar(bars, bars.add_task(title, total=total, unit=unit, note=""))

    @contextmanager
    def _lines(self, title: str, total: float | None, unit: str) -> Iterator[work.Task]:
        lines = _Lines(self, title, total, unit)
        yield lines
        self.say(f"{title}: {lines.done:,.0f} {unit} in {time.monotonic() - lines.start:.1f} s")


def make_bars(console: Console) -> Progress:
    """Bars for counted tasks; each task has the fields ``unit`` and ``note``."""
    wide = console.width >= _WIDE
    columns = (
        TextColumn("{task.description}"), *([BarColumn(bar_width=24)] if wide else ()), MofNCompleteColumn(),
        _Rate(Column(no_wrap=True)), TimeRemainingColumn(), *([TextColumn("[dim]{task.fields[note]}")] if wide else ()),
    )  # fmt: skip
    return Progress(*columns, console=console)


@dataclass
class Bar:
    """One task of some bars."""

    bars: Progress
    task: Any

    def advance(self, steps: float = 1) -> None:
        """Count ``steps`` more units as done."""
        self.bars.advance(self.task, steps)

    def note(self, text: str) -> None:
        """Show a short remark beside the bar."""
        self.bars.update(self.task, note=escape(text))


class _Lines:
    def __init__(self, output: Output, title: str, total: float | None, unit: str) -> None:
        self.output, self.title, self.total, self.unit = output, title, total, unit
        self.done, self.start = 0.0, time.monotonic()
        self.said = self.start

    def advance(self, steps: float = 1) -> None:
        self.done += steps
        now = time.monotonic()
        if now - self.said >= _PLAIN_LINE_EVERY_S:
            self.said = now
            rate = self.done / (now - self.start)
            left = f", {(self.total - self.done) / rate:,.0f} s left" if self.total and rate else ""
            total = f" of {self.total:,.0f}" if self.total else ""
            self.output.say(f"{self.title}: {self.done:,.0f}{total} {self.unit}, {rate:,.1f}/s{left}")

    def note(self, text: str) -> None: ...
