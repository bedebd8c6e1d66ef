"""Options that several commands take, declared once. Each is a type for Typer; its default stands in the command."""

from typing import Annotated

import typer

Budget = Annotated[
    str,
    typer.Option(
        "--budget", help="10.3GB, 5.2bits, 0.6x (of BF16), kl=0.002, time=0.7x or time=1.5ms.", show_default=False
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", help="UNIT=FORMAT, also layers.*.mlp=fp8; repeatable.", show_default=False),
]
Forbidden = Annotated[
    str, typer.Option("--forbid", help="Formats no unit may have, bf16 included.", show_default=False)
]
MaxFormats = Annotated[
    int | None, typer.Option("--max-formats", help="Most formats in use, besides bf16.", show_default=False)
]
