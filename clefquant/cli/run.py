"""``clefquant run``: everything, from one YAML."""

from pathlib import Path
from typing import Annotated, Any

import typer

from clefquant.cli.console import Output
from clefquant.cli.stages import StageView


def _print_schema(asked: bool) -> None:
    if asked:
        from clefquant.pipeline.config_file import schema_text

        print(schema_text(), end="")
        raise typer.Exit


def run(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file; see configs/.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run instead of the configuration's.", show_default=False)
    ] = None,
    until: Annotated[str, typer.Option(help="The last stage to do.")] = "report",
    force: Annotated[
        list[str] | None, typer.Option(help="A stage to do again; repeatable.", show_default=False)
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Do every stage again.")] = False,
    _: Annotated[
        bool,
        typer.Option("--schema", callback=_print_schema, is_eager=True, help="Print the JSON Schema of CONFIG, stop."),
    ] = False,
) -> None:
    """Calibrate, plan, quantize, export, audit and verify; stages done before from the same inputs are kept.

    Example: `clefquant run configs/nano-mixed.yaml`
    """
    from clefquant.pipeline.flow import STAGES, check_stage, open_flow

    output: Output = context.obj
    check_stage(until)
    flow = open_flow(config, STAGES if restart else (force or ()), out)
    with StageView(output, flow.stages(until)) as view:
        flow.watched_by(view)
        flow.run(until)
    paths: dict[str, Path] = {}
    if "release" in flow.results:
        paths["release"] = flow.out / "release"
    if "report" in flow.results:
        _summary(output, flow.results["report"])
        paths["report"] = flow.out / "report" / "report.html"
    output.done(
        {"stages": flow.results, "seconds": flow.journal.seconds()},
        wrote=paths,
        next_command=("publish", flow.out / "release", "--repo", "ORG/NAME", "--dry-run") if "report" in paths else (),
    )


def _summary(output: Output, found: dict[str, Any]) -> None:
    """The figures people ask for first."""

    def share(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f} %"

    before, after = found["reference_bytes"], found["bytes"]
    kl = "–" if found["kl"] is None else f"{found['kl']:.5f}"  # no answer was finite
    output.say(f"\n{found['headline']}", style="bold")
    output.say(f"agreement with BF16  {share(found['agreement'])} of {found['questions']} questions")
    output.say(f"KL(BF16 ‖ release)   {kl}")
    output.say(f"accuracy             {share(found['accuracy_reference'])} before, {share(found['accuracy'])} after")
    output.say(
        f"size                 {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after ({after / before:.0%})\n"
    )
