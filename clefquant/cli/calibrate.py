"""``clefquant calibrate``: a calibration or evaluation set from a mixture of sources."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from clefquant.cli.console import Output

_BAR_CHARACTERS = 40


def calibrate(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", help="Hub id, release folder or nano.", show_default=False)],
    mixture: Annotated[str, typer.Option("--mixture", help="YAML file, or a bundled name.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder of the set; must not exist yet.", show_default=False)],
    split: Annotated[
        Literal["calibration", "evaluation", "eval"] | None,
        typer.Option("--split", help="Side of generators and public text.", show_default="the mixture's"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Fixes every draw.")] = 0,
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="A set that must share nothing with this one; repeatable.")
    ] = None,
    drop_overlap: Annotated[bool, typer.Option("--drop-overlap", help="Leave shared records out.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first bad record instead of counting it.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; changes no byte.", show_default="by size")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart/--resume", help="Discard an interrupted build of this set.")
    ] = False,
) -> None:
    """Build a calibration or evaluation set in Clef's record format.

    Example: `clefquant calibrate --model nano --mixture nano --against runs/eval --out runs/calibration`
    """
    from clefquant.calibration.build import build_set
    from clefquant.calibration.mixture import load_mixture
    from clefquant.release.artefact import check_new_folder
    from clefquant.release.release import open_release

    output: Output = context.obj
    check_new_folder(out)
    chosen = load_mixture(mixture)
    built = build_set(
        open_release(model),
        chosen,
        "evaluation" if split == "eval" else split,
        out,
        seed,
        against=against or (),
        drop_overlap=drop_overlap,
        strict=strict,
        workers=workers,
        restart=restart,
        progress=output,
    )
    _show(output, built.report)
    if built.report["split"] == "calibration" and not against:
        output.say("not compared with an evaluation set; --against SET refuses records that both hold", style="dim")
    output.done(built.report, wrote={"set": built.path}, next_command=("inspect", built.path))


def _show(output: Output, report: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("source", "records", "asked", "tokens", "longest", "questions", "rejected", "twice", "cut"):
        table.add_column(name, justify="left" if name == "source" else "right", no_wrap=True)
    for source in report["sources"]:
        asked = "all" if source["asked"] is None else f"{source['asked']:,}"
        numbers = (source["tokens"], source["longest"][0], sum(source["questions"].values()))
        left = (source["rejected"], source["duplicates"], source["truncated"])
        table.add_row(source["name"], f"{source['records']:,}", asked, *(f"{n:,}" for n in (*numbers, *left)))
    lengths, questions = report["lengths"], report["questions"]
    output.table(table)
    most = max(item["records"] for item in lengths["histogram"])
    for item in lengths["histogram"]:
        bar = "█" * round(_BAR_CHARACTERS * item["records"] / most)
        output.say(f"≤ {item['up_to']:>7,} tokens  {item['records']:>7,}  {bar}")
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in questions.items())
    output.say(
        f"{report['records']:,} records, {report['tokens']:,} tokens, {kinds} questions, "
        f"{report['options']:,} options; "
        f"median {lengths['median']:,} tokens, longest {lengths['longest']:,} ({lengths['longest_id']})"
    )
