"""``clefquant nano``: the bundled model as an ordinary folder."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output


def nano(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet.", show_default=False)
    ],
) -> None:
    """Write the bundled trained nano Clef as an ordinary release folder.

    Example: `clefquant nano runs/nano-release`
    """
    from clefquant.release.nano import write_nano

    output: Output = context.obj
    folder = write_nano(directory)
    output.done({}, wrote={"release": folder}, next_command=("inspect", folder))
