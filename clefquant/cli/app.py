"""The ``clefquant`` command: global options, one file per command, exit codes.

Exit codes: 0 done, 1 a check or gate failed, 2 wrong usage or input, 3 missing prerequisite, 130 interrupted.
"""

import logging
import os
import signal
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clefquant import __version__
from clefquant.cli.console import Output
from clefquant.cli.failures import INTERRUPTED, explain

# Before torch starts its threads: threads that spin while they wait make a shared processor eight times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

#: Command name to the module under ``clefquant.cli`` that holds its function of the same name (``-`` as ``_``).
COMMANDS = (
    "run", "calibrate", "sensitivity", "plan", "quantize", "shrink-tables", "export", "audit", "verify", "compare",
    "publish", "nano", "inspect", "doctor",
)  # fmt: skip

_GLOBAL = ("--json", "--quiet", "-q", "--verbose", "-v")


class _Group(TyperGroup):
    """Takes the global options behind the command too, where people type them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move them to the front; what stands behind ``--`` is left alone."""
        end = args.index("--") if "--" in args else len(args)
        mine = [word for word in args[:end] if word in _GLOBAL]
        return super().parse_args(ctx, mine + [word for word in args[:end] if word not in _GLOBAL] + args[end:])


app = typer.Typer(
    cls=_Group,
    name="clefquant",
    help="Makes Clef decision models small and fast, and shows what that changed.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"clefquant {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show errors and warnings only.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what the libraries below say.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    alone = os.environ.get("RANK", "0") == "0"  # of processes that torchrun started, the first speaks for all
    output = context.obj = context.obj or Output()
    output.as_json, output.quiet, output.verbose = as_json and alone, quiet or not alone, verbose
    if as_json or not verbose:
        _silence_libraries()


def _silence_libraries() -> None:
    """Progress bars, advice and warnings of the libraries below are noise beside ours; ``--verbose`` keeps them.

    By environment, before they are imported: processes that we start inherit it, and an import undoes other ways.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("LLM_COMPRESSOR_LOG_DISABLED", "true")  # both log to stdout, where our JSON goes
    os.environ.setdefault("COMPRESSED_TENSORS_LOG_DISABLED", "true")
    logging.disable(logging.WARNING)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


for _name in COMMANDS:
    _function = _name.replace("-", "_")
    app.command(_name)(getattr(import_module(f"clefquant.cli.{_function}"), _function))


def main() -> None:
    """Entry point: run a command and turn failures into one message and an exit code."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    output = Output(as_json="--json" in sys.argv)  # until the options are read
    try:
        code = app(obj=output, standalone_mode=False) or 0  # failures come here, also those of usage
        if code == INTERRUPTED:  # Typer turns Ctrl-C into it
            raise KeyboardInterrupt
    except (Exception, KeyboardInterrupt) as error:
        known = explain(error)
        output.failed(*(known or (repr(error), 1)), told=known is None)
        if known is None:
            raise
        code = known[1]
    sys.exit(code)
