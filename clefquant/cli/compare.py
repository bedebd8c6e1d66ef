"""``clefquant compare``: verify reports side by side."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output


def compare(
    context: typer.Context,
    reports: Annotated[
        list[Path], typer.Argument(help="Folders that `verify` wrote, two or more.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="New folder for the comparison.", show_default=False)],
) -> None:
    """Put several verify reports side by side.

    Example: `clefquant compare runs/report-fp8 runs/report-nvfp4 --out runs/comparison`
    """
    from rich.markup import escape
    from rich.table import Table

    from clefquant.verify.compare import compare as run

    output: Output = context.obj
    found = run(reports, out)
    for difference in found.differences:
        output.warn(difference)
    shown = Table("", *map(escape, found.value["names"]))
    for line in found.value["lines"]:
        shown.add_row(*map(escape, line))
    output.table(shown)
    result = {key: found.value[key] for key in ("names", "lines", "sections", "differences")}
    output.done(result, wrote={"page": found.html, "tables": found.markdown, "numbers": found.json})
