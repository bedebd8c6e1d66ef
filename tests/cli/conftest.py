"""Running the command line in this process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from click.testing import Result
from typer.testing import CliRunner


class Finished(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: object) -> Result:
    """Call it with arguments; an error that ends it is ``exception`` of the result."""
    from clefquant.cli.app import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


@pytest.fixture
def clefquant(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Call it with arguments; it returns exit code, stdout and stderr."""
    from clefquant.cli.app import main

    def call(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["clefquant", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Finished(code, out, err)

    return call
