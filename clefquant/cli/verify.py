"""``clefquant verify``: agreement, KL, accuracy and calibration of a release against BF16."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output


# Long: Typer reads the options from the signature.
def verify(
    context: typer.Context,
    release: Annotated[str, typer.Argument(help="Quantized release folder or Hub id.", show_default=False)],
    against: Annotated[
        str, typer.Option(help="The BF16 release, or reference-*.parquet of an earlier run.", show_default=False)
    ],
    evaluation: Annotated[
        list[Path],
        typer.Option("--eval", help="Evaluation set written by `calibrate`; repeatable.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report; a killed run continues in it.", show_default=False)],
    backend: Annotated[
        str, typer.Option(help="simulate, vllm, or the URL of a running server (http://HOST:PORT).")
    ] = "simulate",
    gate: Annotated[
        Path | None, typer.Option(help="YAML of limits; exit code 1 when one is not kept.", show_default=False)
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="Python of the serving environment, for vllm.", show_default=False)
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the key of a server that wants one.", show_default=False)
    ] = None,
    engine: Annotated[str, typer.Option(help="JSON of further ClefVLLM arguments, for vllm.")] = "{}",
    sensitivity: Annotated[
        Path | None, typer.Option(help="Result folder of a sweep, to show its frontier.", show_default=False)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; the GPU when there is one.", show_default=False)
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Padded tokens of one batch.", min=1)] = 4096,
    seed: Annotated[int, typer.Option(help="Of bootstrap and noise sample.")] = 0,
    shard: Annotated[str, typer.Option(help="This worker and how many share --out, as 0/4.")] = "0/1",
    ray: Annotated[
        str | None,
        typer.Option(help="Spread BF16 and a simulated release over Ray: auto, or a cluster.", show_default=False),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard what an earlier run left in --out.")] = False,
) -> None:
    """Compare a quantized release with BF16 and write a report.

    Example: `clefquant verify runs/nvfp4-release --against nano --eval runs/evaluation --out runs/report`
    """
    from clefquant.verify.devices import parse_device, parse_engine, parse_shard
    from clefquant.verify.run import GateFailed, Options, VerifyReport
    from clefquant.verify.run import verify as run

    output: Output = context.obj
    options = Options(
        device=parse_device(device), batch_tokens=batch_tokens, seed=seed, python=python, engine=parse_engine(engine),
        key_file=api_key_file,
        shard=parse_shard(shard), ray=ray, restart=restart, sensitivity=sensitivity,
    )  # fmt: skip

    def show(report: VerifyReport) -> None:
        output.say(report.value["verdict"]["headline"], style="bold")
        for reason in report.value["verdict"]["reasons"]:
            output.say(f"  {reason}")
        output.done(
            report.summary,
            wrote={
                "report": report.html,
                "tables": report.markdown,
                "numbers": report.json,
                "reference": report.reference,
            },
            next_command=("compare", out, "OTHER_REPORT", "--out", "comparison"),
        )

    try:
        report = run(release, against, evaluation, out, backend=backend, gate=gate, options=options, progress=output)
    except GateFailed as failed:
        show(failed.report)
        raise
    show(report)
