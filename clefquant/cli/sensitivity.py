"""``clefquant sensitivity``: which units can be made smaller, and the layout that spends a budget best."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clefquant.cli.console import Output
from clefquant.cli.options import Budget, Forbidden, MaxFormats, Pins
from clefquant.errors import InputError

if TYPE_CHECKING:
    from clefquant.release.release import Release


# Long: Typer reads the options from the signature.
def sensitivity(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", help="Hub id, release folder or nano.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", help="Folder; an interrupted run in it is continued.", show_default=False)
    ],
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Set for input scales.", show_default=False)
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option("--eval", help="Set to score, choose and measure on, in three parts.", show_default=False),
    ] = None,
    budget: Budget = "",
    formats: Annotated[
        str, typer.Option("--formats", help="Formats to choose from, besides bf16.")
    ] = "fp8,nvfp4,mxfp4",
    metric: Annotated[
        Literal["measured", "fisher"],
        typer.Option("--metric", help="Probe every unit, or estimate by a backward pass."),
    ] = "measured",
    algorithm: Annotated[str, typer.Option("--algorithm", help="How weights are rounded: rtn or gptq.")] = "rtn",
    nvfp4_scales: Annotated[
        str, typer.Option("--nvfp4-scales", help="How NVFP4 block scales are chosen: max or four-over-six.")
    ] = "max",
    mxfp4_scales: Annotated[
        str, typer.Option("--mxfp4-scales", help="How MXFP4 block scales are chosen: even, floor, ceil or least-error.")
    ] = "even",
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Fewer records for units whose rank is certain; about half the probes.")
    ] = False,
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
    restart: Annotated[bool, typer.Option("--restart", help="Discard what an earlier run left in --out.")] = False,
    cost_only: Annotated[
        bool,
        typer.Option("--measure-cost", help="Only time each unit's matrix products in each format on this device."),
    ] = False,
) -> None:
    """Score every unit in every format by the decisions it moves, then choose and measure a layout.

    Example: `clefquant sensitivity --model nano --calibration runs/calibration --eval runs/evaluation --budget 0.6x
    --out runs/sensitivity`
    """
    from clefquant.cli.plan import read_constraints, show_plan, show_time
    from clefquant.quantize.scales import Scales
    from clefquant.release.release import open_release
    from clefquant.release.shards import parse_size
    from clefquant.sensitivity.cost import read_cost
    from clefquant.sensitivity.run import run_sensitivity

    output: Output = context.obj
    release = open_release(model)
    if cost_only:
        _measure_cost(output, release, formats.split(","), out)
        return
    if calibration is None or evaluation is None or not budget:
        raise InputError("a sweep needs --calibration, --eval and --budget; only --measure-cost does without them.")
    outcome = run_sensitivity(
        release,
        calibration,
        evaluation,
        formats.split(","),
        budget,
        out,
        metric=metric,
        algorithm=algorithm,
        scales=Scales(nvfp4_scales, mxfp4_scales),
        adaptive=adaptive,
        constraints=read_constraints(pin, forbid, max_formats),
        candidates=candidates,
        batch_tokens=batch_tokens,
        cache_bytes=parse_size(cache_bytes),
        ray_address=ray,
        restart=restart,
        progress=output,
    )
    show_plan(output, outcome.layout, release.backbone_bytes)
    if file := outcome.files.get("cost"):
        show_time(output, read_cost(file), outcome.layout)
    kl, predicted = outcome.selection.held_out.get("kl"), outcome.selection.choice.predicted_kl
    if kl is not None:
        output.say(f"KL {kl.value:.2e} ± {kl.error or 0:.1e} on held-out records (predicted {predicted:.2e})")
    following = ("--model", model, "--layout", outcome.files["layout"], "--calibration", calibration)
    used = asdict(Scales(nvfp4_scales, mxfp4_scales).used(outcome.layout.units.values()))
    rounding = [
        text for name, value in outcome.table.rounding.items() if used.get(name.removesuffix("-scales"), value) == value
        for text in (f"--{name}", value)
    ]  # fmt: skip
    output.done(
        {**outcome.layout.model_dump(), "failed_probes": len(outcome.table.failed), "within": outcome.selection.within},
        wrote=outcome.files,
        next_command=("quantize", *following, *rounding, "--out", out.parent / "checkpoint"),
    )


def _measure_cost(output: Output, release: "Release", formats: list[str], out: Path) -> None:
    from clefquant.sensitivity.cost import COST_FILE, measure_cost

    cost = measure_cost(release, formats, progress=output)
    cost.write(out / COST_FILE)
    before = cost.total(dict.fromkeys(cost.units, "bf16"))
    output.say(f"{cost.device}, {cost.tokens:,} tokens: all units of {cost.model} against bf16's {before:.3g} ms")
    for name, kernel in cost.kernels.items():
        times = [times[name] / times["bf16"] for times in cost.units.values() if name in times]
        output.say(f"  {name:10} {sum(times) / len(times):5.2f}x   {kernel}")
    output.done(cost.model_dump(), wrote={"cost": out / COST_FILE})
