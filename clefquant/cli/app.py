"""The ``clefquant`` command: global options, one file per command, exit codes.

Exit codes: 0 done, 1 a check or gate failed, 2 wrong usage or input, 3 missing prerequisite, 130 interrupted.
"""

import os
import signal
import sys
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from clefquant import __version__
from clefquant.cli.console import Output
from clefquant.errors import ClefquantError, PrerequisiteError

# Before torch starts its threads: threads that spin while they wait make a shared processor eight times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

#: Command name to the module under ``clefquant.cli`` that holds its function of the same name (``-`` as ``_``).
COMMANDS = (
    "run", "calibrate", "sensitivity", "plan", "quantize", "shrink-tables", "export", "audit", "verify", "compare",
    "publish", "nano", "inspect", "doctor",
)  # fmt: skip

_INTERRUPTED = 130

app = typer.Typer(
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
    context.obj = Output(as_json=as_json and alone, quiet=quiet or not alone, verbose=verbose)
    if as_json or not verbose:
        _silence_libraries()


def _silence_libraries() -> None:
    """Progress bars and advice of the libraries below are noise beside ours; ``--verbose`` keeps them."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("LLM_COMPRESSOR_LOG_DISABLED", "true")  # it logs to stdout, where our JSON goes
    from loguru import logger

    logger.disable("llmcompressor")
    logger.disable("compressed_tensors")


for _name in COMMANDS:
    _function = _name.replace("-", "_")
    app.command(_name)(getattr(import_module(f"clefquant.cli.{_function}"), _function))


def main() -> None:
    """Entry point: run a command and turn failures into one message and an exit code."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    output = Output()
    try:
        app()  # ends in SystemExit, also on wrong usage (2) and Ctrl-C (130)
    except ClefquantError as error:
        _fail(output, str(error), error.exit_code)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            say = "interrupted; finished work is kept, run the same command again to continue"
            output.console.print(say, soft_wrap=True)
        raise
    except OSError as error:
        if error.errno is None:
            raise
        failure = f"{error.filename or 'writing'}: {error.strerror}. Free space or choose another place."
        _fail(output, failure, PrerequisiteError.exit_code)


def _fail(output: Output, message: str, code: int) -> NoReturn:
    output.console.print(f"error: {message}", markup=False, soft_wrap=True)
    sys.exit(code)
