"""``clefquant calibrate``: a calibration or evaluation set from a mixture of sources."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from clefquant.cli.console import Output


def calibrate(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", help="Hub id, release folder or nano.", show_default=False)],
    mixture: Annotated[
        str, typer.Option("--mixture", help="YAML file, or the name of a bundled one.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the set; must not exist yet.", show_default=False)],
    split: Annotated[
        Literal["calibration", "evaluation", "eval"] | None,
        typer.Option("--split", help="Side of generators and public text.", show_default="the mixture's"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Fixes every draw.")] = 0,
) -> None:
    """Build a calibration or evaluation set in Clef's record format.

    Example: `clefquant calibrate --model nano --mixture nano --out runs/calibration`
    """
    from clefquant.calibration.build import build_set
    from clefquant.calibration.mixture import load_mixture
    from clefquant.release.release import open_release

    output: Output = context.obj
    side: Literal["calibration", "evaluation"] | None = "evaluation" if split == "eval" else split
    built = build_set(open_release(model), load_mixture(mixture), side, out, seed, progress=output)
    output.done(built.report, wrote={"set": built.path}, next_command=f"clefquant inspect {built.path}")
