"""``clefquant audit``: what is wrong with a checkpoint, from its files alone."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from clefquant.cli.console import Output
from clefquant.errors import CheckFailed, InputError

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def audit(
    context: typer.Context,
    release: Annotated[
        Path, typer.Argument(metavar="RELEASE", help="A release or checkpoint folder.", show_default=False)
    ],
    tp: Annotated[int, typer.Option("--tp", min=1, help="Also check that it divides over this many GPUs.")] = 1,
    repair: Annotated[bool, typer.Option("--repair", help="Write a repaired copy to --out.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the repaired copy; must not exist.")] = None,
) -> None:
    """Check any quantized Clef or Qwen3.5 checkpoint, also foreign ones; exit 1 on an error finding.

    Example: `clefquant audit runs/nano-fp8-release --tp 2`
    """
    from clefquant.export.audit import audit as run_audit
    from clefquant.export.audit import has_errors

    output: Output = context.obj
    if repair != (out is not None):
        raise InputError("--repair and --out DIR go together: a repair is written to a new folder, never in place.")
    if repair and out is not None:
        _repair(output, release, out)
        return
    findings = run_audit(release, ranks=tp, progress=output)
    counts = {severity: sum(found.severity == severity for found in findings) for severity in _STYLES}
    for found in findings:
        place = found.file or ""
        if not output.as_json and (found.severity == "error" or not output.quiet):
            line = Text(f"{found.severity:7} ", style=_STYLES[found.severity])
            line += Text(f"{place + ': ' if place and place not in found.message else ''}{found.message}")
            line += Text(f"  → {found.remedy}" if found.remedy and found.severity != "info" else "", style="dim")
            output.console.print(line, soft_wrap=True)
    output.say(f"errors: {counts['error']}, warnings: {counts['warning']}")
    output.done({"findings": [found.to_json() for found in findings], "counts": counts})
    if has_errors(findings):
        raise CheckFailed(f"{release} does not pass (errors: {counts['error']}).")


def _repair(output: Output, release: Path, out: Path) -> None:
    from clefquant.export.repair import repair as run_repair

    done = run_repair(release, out, progress=output)
    for text in done.actions:
        output.say(f"- {text}")
    for text in done.left:
        output.warn(text)
    output.done(done.to_json(), wrote={"repaired": out}, next_command=("audit", out))
    if done.left:
        raise CheckFailed(f"{len(done.left)} faults could not be repaired; {out} holds what could be.")
