"""``clefquant quantize``: a quantized checkpoint from a release."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output


def quantize(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Release folder, Hub id, or nano.", show_default=False)],
    out: Annotated[Path, typer.Option(help="New folder for the checkpoint.", show_default=False)],
    scheme: Annotated[
        str | None, typer.Option(help="One format for every unit: fp8, nvfp4, mxfp4, …", show_default=False)
    ] = None,
    layout: Annotated[
        Path | None, typer.Option(help="A format per unit: layout.json of `plan` or `sensitivity`.", show_default=False)
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Set written by `calibrate`; needed by nvfp4.", show_default=False)
    ] = None,
    algorithm: Annotated[str, typer.Option(help="How weights are rounded: rtn or gptq.")] = "rtn",
) -> None:
    """Quantize a release into a new checkpoint folder.

    Example: `clefquant quantize --model nano --scheme nvfp4 --calibration runs/calibration --out runs/nvfp4`
    """
    from clefquant.quantize.calibrated import chosen_layout
    from clefquant.quantize.calibrated import quantize as run
    from clefquant.release.release import open_release

    output: Output = context.obj
    release = open_release(model)
    chosen = chosen_layout(release, scheme, layout)
    folder = run(release, chosen, calibration, out, algorithm=algorithm, progress=output)
    ratio = chosen.bytes / release.backbone_bytes
    sizes = f"{release.backbone_bytes / 1e6:,.1f} MB → {chosen.bytes / 1e6:,.1f} MB ({ratio:.0%})"
    output.say(f"{sizes}, {chosen.bits_per_weight} bits a weight")
    output.done(
        {"bytes": chosen.bytes, "source_bytes": release.backbone_bytes, "bits_per_weight": chosen.bits_per_weight},
        wrote={"checkpoint": folder},
        next_command=("export", folder, "--out", f"{folder}-release"),
    )
