"""``clefquant shrink-tables``: embedding and lm_head to int8."""

from pathlib import Path
from typing import Annotated

import typer

from clefquant.cli.console import Output
from clefquant.errors import InputError


def shrink_tables(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A checkpoint or BF16 release folder.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Write here; default: replace DIR.")] = None,
    restore: Annotated[bool, typer.Option("--restore", help="Go back to BF16 tables.")] = False,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="An evaluation set: measure the effect on option probabilities.")
    ] = None,
) -> None:
    """Store the embedding and lm_head tables as int8 with one scale per row; only clef-vllm reads the result.

    Example: `clefquant shrink-tables runs/nano-fp8 --out runs/nano-fp8-int8`
    """
    from clefquant.export.tables import restore_tables
    from clefquant.export.tables import shrink_tables as run

    output: Output = context.obj
    if restore and evaluation is not None:
        raise InputError("--eval measures what int8 tables change; leave it out with --restore.")
    if restore:
        folder = restore_tables(directory, out, progress=output)
        output.done(
            {"tables": "bf16"}, wrote={"checkpoint": folder}, next_command=("export", folder, "--out", "RELEASE")
        )
        return
    effect = None
    if evaluation is not None:
        from clefquant.export.table_effect import table_effect

        effect = table_effect(directory, evaluation, progress=output)
    done = run(directory, out, progress=output)
    for table in done.tables:
        output.say(
            f"{table.table}: relative error {table.relative_error:.2%}, row cosine mean {table.cosine_mean:.6f}, "
            f"worst {table.cosine_worst:.6f}, {table.zero_rows} zero rows"
        )
        worst = ", ".join(f"{row['token']!r} {row['cosine']:.6f}" for row in table.worst)
        output.say(f"  worst rows: {worst}")
    if effect is not None:
        output.say(
            f"{effect.questions} questions: mean KL {effect.kl:.2e}, same top option {effect.agreement:.2%}, "
            f"max |Δp| {effect.max_difference:.4f}"
        )
    output.say(f"{done.saved_bytes / 1e6:,.1f} MB saved")
    result = {
        "saved_bytes": done.saved_bytes,
        "tables": [table._asdict() for table in done.tables],
        "effect": None if effect is None else effect._asdict(),
    }
    output.done(result, wrote={"checkpoint": done.path}, next_command=("export", done.path, "--out", "RELEASE"))
