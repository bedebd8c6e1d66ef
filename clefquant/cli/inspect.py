"""``clefquant inspect``: what is in a folder or file."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output
from clefquant.errors import InputError


def inspect(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Release, checkpoint, set, layout, sensitivity table or report; or nano.",
            show_default=False,
        ),
    ],
    record: Annotated[int | None, typer.Option(min=1, help="Show this record of a set as the model sees it.")] = None,
    model: Annotated[str, typer.Option(help="The model the set was encoded with, for --record.")] = "nano",
) -> None:
    """Show what is in a folder or file, in one screen.

    Example: `clefquant inspect runs/nano-fp8-release`
    """
    output: Output = context.obj
    if record is not None:
        _record(output, Path(path), record, model)
        return
    from clefquant.export.inspection import inspect as run

    found = run(path)
    output.say(found.kind, style="bold")
    if not output.quiet:
        for line in found.lines:
            output.console.print(line, markup=False, soft_wrap=True)
    output.done({"kind": found.kind, **found.data})


def _record(output: Output, path: Path, number: int, model: str) -> None:
    from clefquant.calibration.show import show_record
    from clefquant.calibration.stored import HEADER_FILE, open_set
    from clefquant.release.code import release_code
    from clefquant.release.release import open_release

    if not (path / HEADER_FILE).is_file():
        raise InputError(f"{path} is no calibration set; --record shows a record of one.")
    release = open_release(model)
    stored = open_set(path, release.path, release_code(release.path))
    output.console.print(show_record(stored, number), soft_wrap=True)
    output.done({"record": number})
