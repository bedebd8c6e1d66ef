"""What is printed is what was meant: names and paths are no markup."""

import io
from pathlib import Path

from rich.console import Console
from rich.text import Text

from clefquant.cli.console import Output


def shown(width: int = 100) -> Output:
    return Output(console=Console(file=io.StringIO(), width=width, highlight=False))


def text(output: Output) -> str:
    return output.console.file.getvalue()  # type: ignore[attr-defined]


def test_brackets_and_colons_of_a_path_stay():
    output = shown()
    path = Path("runs/[bold]/:warning:/[/x]")
    output.say(f"wrote {path}", style="bold")
    output.say(Text(f"next {path}"))
    output.warn(str(path))
    output.done({}, wrote={"set": path}, next_command=("inspect", path))
    with output.task(f"reading {path}", 2, "bytes") as task:
        task.advance(2)
    lines = text(output).splitlines()
    assert all("runs/[bold]/:warning:/[/x]" in line for line in lines)
    assert len(lines) == 6


def test_a_note_beside_a_bar_stays_as_it_is():
    output = Output(console=Console(file=io.StringIO(), width=120, force_terminal=True, highlight=False))
    with output.task("reading", 2, "bytes") as task:
        task.note("[a]/model.safetensors")
        task.advance(2)
    assert "[a]/model.safetensors" in text(output)
