"""The stages of a run while it goes on: a table with the bars of the current one below, or lines without a terminal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clefquant import progress as work
from clefquant.cli.console import Bar, Output, make_bars
from clefquant.progress import TaskContext

_MARKS = {"waiting": ("·", "dim"), "kept": ("=", "dim"), "running": (">", "bold cyan"), "done": ("+", "green")}
_REFRESHES_PER_S = 4


@dataclass
class _State:
    state: str = "waiting"
    note: str = ""


class StageView:
    """Watches a run and draws its tasks; a context manager for the time of the run."""

    def __init__(self, output: Output, stages: Sequence[str]) -> None:
        self.output = output
        self.states = {stage: _State() for stage in stages}
        self._bars = make_bars(output.console)
        self._live = Live(
            get_renderable=self.render, console=output.console, refresh_per_second=_REFRESHES_PER_S
        ) if output.draws else None  # fmt: skip

    def __enter__(self) -> "StageView":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def kept(self, stage: str) -> None:
        """The stage was done before from the same inputs."""
        self._set(stage, "kept", "done before from the same inputs, kept")

    def started(self, stage: str, why: str) -> None:
        """The stage begins."""
        self._set(stage, "running", why)

    def finished(self, stage: str, seconds: float) -> None:
        """The stage is done."""
        self._set(stage, "done", f"{seconds:,.1f} s")

    def warn(self, text: str) -> None:
        """A line about something that did not stop the work."""
        self.output.warn(text)

    def task(self, title: str, total: float | None, unit: str = "") -> TaskContext:
        """A counted task of the current stage."""
        return self._bar(title, total, unit) if self._live else self.output.task(title, total, unit)

    def render(self) -> RenderableType:
        """The table, and the bars of what runs now."""
        table = Table.grid(padding=(0, 2))
        for stage, found in self.states.items():
            mark, style = _MARKS[found.state]
            table.add_row(Text(mark, style=style), Text(stage, style=style), Text(found.note, style="dim"))
        return Group(table, self._bars.get_renderable())

    def _set(self, stage: str, state: str, note: str) -> None:
        self.states[stage] = _State(state, note)
        if self._live:
            self._live.refresh()
        else:
            self.output.say(Text(f"{_MARKS[state][0]} {stage}: {note}", style=_MARKS[state][1]))

    @contextmanager
    def _bar(self, title: str, total: float | None, unit: str) -> Iterator[work.Task]:
        bar = self._bars.add_task(title, total=total, unit=unit, note="")
        try:
            yield Bar(self._bars, bar)
        finally:
            self._bars.remove_task(bar)
