"""``clefquant quantize``: a quantized checkpoint from a release."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefquant.cli.console import Output

if TYPE_CHECKING:
    from clefquant.quantize.preflight import Plan


# Long: Typer reads the options from the signature.
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
    algorithm: Annotated[str, typer.Option(help="How weights are rounded: rtn, gptq, awq, or awq-mlp.")] = "rtn",
    nvfp4_scales: Annotated[str, typer.Option(help="Block scales of nvfp4: max, or four-over-six.")] = "max",
    mxfp4_scales: Annotated[
        str, typer.Option(help="Block scales of mxfp4: even, floor, ceil, or least-error.")
    ] = "even",
    compare: Annotated[
        Path | None,
        typer.Option(help="With rtn, another set: warn where its inputs exceed calibration's.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, show the plan, stop.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart/--resume", help="Discard an interrupted run of this checkpoint.")
    ] = False,
) -> None:
    """Quantize a release into a new checkpoint folder.

    Example: `clefquant quantize --model nano --scheme nvfp4 --calibration runs/calibration --out runs/nvfp4`
    """
    from clefquant.quantize.calibrated import chosen_layout, prepare
    from clefquant.quantize.calibrated import quantize as run
    from clefquant.quantize.scales import Scales
    from clefquant.release.release import open_release

    output: Output = context.obj
    scales = Scales(nvfp4=nvfp4_scales, mxfp4=mxfp4_scales)
    release = open_release(model)
    chosen = chosen_layout(release, scheme, layout)
    if dry_run:
        job = prepare(release, chosen, calibration, out, algorithm=algorithm, scales=scales, compare=compare)
        plan = job.plan()
        _show(output, plan)
        output.done(plan.to_json())
        return
    folder = run(
        release,
        chosen,
        calibration,
        out,
        algorithm=algorithm,
        scales=scales,
        compare=compare,
        restart=restart,
        progress=output,
    )
    ratio = chosen.bytes / release.backbone_bytes
    sizes = f"{release.backbone_bytes / 1e6:,.1f} MB → {chosen.bytes / 1e6:,.1f} MB ({ratio:.0%})"
    output.say(f"{sizes}, {chosen.bits_per_weight} bits a weight")
    output.done(
        {"bytes": chosen.bytes, "source_bytes": release.backbone_bytes, "bits_per_weight": chosen.bits_per_weight},
        wrote={"checkpoint": folder},
        next_command=("export", folder, "--out", f"{folder}-release"),
    )


def _show(output: Output, plan: "Plan") -> None:
    units = ", ".join(f"{number} {name}" for name, number in plan.formats.items())
    output.say(f"units        {units}; {plan.bits_per_weight} bits a weight")
    output.say(f"bytes        {plan.source_bytes / 1e9:,.3f} GB → {plan.bytes / 1e9:,.3f} GB")
    output.say(f"calibration  {plan.records:,} records, {plan.tokens:,} tokens")
    output.say(f"disk         {plan.disk_needed / 1e9:,.2f} GB needed, {plan.disk_free / 1e9:,.1f} GB free")
    short = "" if plan.memory_needed <= plan.memory_free else "  [red]not enough: use fewer or shorter records[/red]"
    output.say(
        f"memory       about {plan.memory_needed / 1e9:,.1f} GB of {plan.device}, "
        f"{plan.memory_free / 1e9:,.1f} GB free{short}"
    )
    unknown = "not foretold for this algorithm; the bar of the run shows what is left"
    output.say(f"time         {unknown if plan.seconds is None else f'about {plan.seconds:,} s'}")
    output.say("everything was checked; nothing was written")
