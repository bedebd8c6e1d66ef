"""Narrow and dumb terminals."""

import io

from rich.console import Console
from rich.table import Table

from clefquant.cli.console import Output


def _terminal(width: int, **environment: str) -> Output:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, _environ=environment)
    return Output(console=console)


def test_a_table_is_never_cut():
    output = _terminal(20)
    table = Table("source", "records", box=None)
    table.add_row("a_rather_long_name", "1,234,567")
    output.table(table)
    assert "a_rather_long_name" in output.console.file.getvalue()
    assert "1,234,567" in output.console.file.getvalue()


def test_bars_fit_a_narrow_terminal():
    output = _terminal(40)
    with output.task("calibrating", 59053, "tok") as task:
        task.advance(1000)
        task.note("a long remark about the layer that is done now")
    lines = output.console.file.getvalue().splitlines()
    assert any("1000/59053" in line for line in lines)
    assert not any("remark" in line for line in lines)


def test_a_dumb_terminal_gets_lines():
    output = _terminal(80, TERM="dumb", NO_COLOR="1")
    assert not output.draws
    with output.task("encoding", 2, "records") as task:
        task.advance(2)
    assert output.console.file.getvalue().startswith("encoding: 2 records in")
    assert "\x1b" not in output.console.file.getvalue()
