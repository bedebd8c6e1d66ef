"""``clefquant export``: a checkpoint becomes a release folder."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output


def export(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A quantized checkpoint.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", help="The release folder to write; must not exist.", show_default=False)
    ],
    max_shard_size: Annotated[str, typer.Option(help="Largest weight file, for example 5GB or 500MB.")] = "5GB",
    base_model: Annotated[
        str | None,
        typer.Option(help="Hub id of the BF16 release, for the card. Default: the id the checkpoint was made from."),
    ] = None,
    repo: Annotated[str | None, typer.Option(help="Repository the card's snippets name (ORG/NAME).")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Calibration set whose sources the card lists.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="report.json of `clefquant verify` for this release; its figures go on the card."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML this was made from, stored as clefquant.yaml.")] = None,
    probe: Annotated[
        Path | None, typer.Option(help="Probe record with reference logits (JSON), checked by the plugin.")
    ] = None,
) -> None:
    """Assemble the release folder: weights, head, tokenizer, plugin, card, checksums.

    Example: `clefquant export runs/nano-fp8 --out runs/nano-fp8-release`
    """
    from clefquant.export.release_folder import export_release, read_probe
    from clefquant.release.shards import parse_size

    output: Output = context.obj
    done = export_release(
        directory,
        out,
        max_shard_bytes=parse_size(max_shard_size),
        config=config,
        probe=None if probe is None else read_probe(probe),
        report=report,
        calibration=calibration,
        base_model=base_model,
        repo=repo,
        progress=output,
    )
    result = {"release_sha256sums": done.sums_sha256, "files": done.files, "bytes": done.bytes}
    output.say(f"{done.files} files, {done.bytes / 1e6:,.1f} MB")
    output.done(result, wrote={"release": done.path}, next_command=("audit", done.path))
