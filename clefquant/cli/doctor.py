"""``clefquant doctor``: what this machine can do."""

from pathlib import Path

import typer
from rich.text import Text

from clefquant.cli.console import Output
from clefquant.errors import PrerequisiteError


def doctor(context: typer.Context) -> None:
    """Show versions, memory, disk and GPU, and what they mean. Exit code 3 when something needed is missing.

    Example: `clefquant doctor`
    """
    from clefquant.cli.machine import machine_facts, package_facts

    output: Output = context.obj
    facts = package_facts() + machine_facts(Path.cwd())
    for fact in facts:
        mark, style = {True: ("ok", "green"), False: ("no", "red"), None: ("  ", "")}[fact.ok]
        line = f"  {fact.name:<20}{fact.found}" + (f"  → {fact.remedy}" if fact.remedy else "")
        output.say(Text.assemble((mark, style), line))
    output.done({"facts": [fact._asdict() for fact in facts]})
    if wrong := [fact for fact in facts if fact.ok is False]:
        raise PrerequisiteError(
            f"{', '.join(fact.name for fact in wrong)}: install what is shown above, then run doctor again."
        )
