"""``clefquant sensitivity``: which units can be made smaller, and the layout that spends a budget best."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from clefquant.cli.console import Output
from clefquant.cli.options import Budget, Forbidden, MaxFormats, Pins


def sensitivity(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", help="Hub id, release folder or nano.", show_default=False)],
    calibration: Annotated[Path, typer.Option("--calibration", help="Set for input scales.", show_default=False)],
    evaluation: Annotated[
        Path, typer.Option("--eval", help="Set to score, choose and measure on, in three parts.", show_default=False)
    ],
    budget: Budget,
    out: Annotated[
        Path, typer.Option("--out", help="Folder; an interrupted run in it is continued.", show_default=False)
    ],
    formats: Annotated[
        str, typer.Option("--formats", help="Formats to choose from, besides bf16.")
    ] = "fp8,nvfp4,mxfp4",
    metric: Annotated[
        Literal["measured", "fisher"],
        typer.Option("--metric", help="Probe every unit, or estimate by a backward pass."),
    ] = "measured",
    pin: Pins = None,
    forbid: Forbidden = "",
    max_formats: MaxFormats = None,
    candidates: Annotated[int, typer.Option("--candidates", min=1, help="Layouts to build and measure.")] = 12,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", min=1, help="Tokens of a padded batch.", show_default="by device")
    ] = None,
    cache_bytes: Annotated[
        str, typer.Option("--cache-bytes", help="Hidden states kept in memory; beyond it on disk.")
    ] = "4GiB",
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Spread probes over Ray: auto, or a cluster's address.", show_default=False),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard finished probes in --out.")] = False,
) -> None:
    """Score every unit in every format by the decisions it moves, then choose and measure a layout.

    Example: `clefquant sensitivity --model nano --calibration runs/calibration --eval runs/evaluation --budget 0.6x
    --out runs/sensitivity`
    """
    from clefquant.cli.plan import read_constraints, show_plan
    from clefquant.release.release import open_release
    from clefquant.sensitivity.budget import parse_bytes
    from clefquant.sensitivity.run import run_sensitivity

    output: Output = context.obj
    release = open_release(model)
    outcome = run_sensitivity(
        release,
        calibration,
        evaluation,
        formats.split(","),
        budget,
        out,
        metric=metric,
        constraints=read_constraints(pin, forbid, max_formats),
        candidates=candidates,
        batch_tokens=batch_tokens,
        cache_bytes=parse_bytes(cache_bytes, "--cache-bytes"),
        ray_address=ray,
        restart=restart,
        progress=output,
    )
    show_plan(output, outcome.layout, release.backbone_bytes)
    kl, predicted = outcome.selection.held_out.get("kl"), outcome.selection.choice.predicted_kl
    if kl is not None:
        output.say(f"KL {kl.value:.2e} ± {kl.error or 0:.1e} on held-out records (predicted {predicted:.2e})")
    following = ("--model", model, "--layout", outcome.files["layout"], "--calibration", calibration)
    output.done(
        {**outcome.layout.model_dump(), "failed_probes": len(outcome.table.failed), "within": outcome.selection.within},
        wrote=outcome.files,
        next_command=("quantize", *following, "--out", out.parent / "checkpoint"),
    )
