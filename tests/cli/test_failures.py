"""What a failure looks like: one line for people, one JSON value for programs, an exit code."""

import errno
import json

import pytest

from clefquant.cli.failures import explain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quantize",), "Missing option '--model'. See `clefquant quantize --help`."),
        (("quantise",), "No such command 'quantise'. Did you mean 'quantize'? See `clefquant --help`."),
        (("quantize", "--modle", "nano"), "(Possible options: --model)"),
        (("inspect", "nowhere"), "there is nothing at nowhere."),
        (("inspect", __file__), "is none of what inspect reads"),
        (("run", "/"), "/ is a folder; a configuration is a YAML file"),
        (("plan", "--budget", "5bits", "--table", "/"), "/sensitivity.json does not exist"),
        ((), "Missing command."),
    ],
)
def test_one_line_and_one_value(clefquant, arguments, message):
    done = clefquant("--json", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err == f"error: {json.loads(done.out)['error']['message']}\n"


def test_a_printed_result_is_the_only_value(clefquant, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = clefquant("--json", "audit", tmp_path)
    assert done.code == 1
    assert json.loads(done.out)["counts"]["error"] > 0


def test_global_options_may_stand_anywhere(clefquant):
    before, behind = clefquant("--json", "--quiet", "doctor"), clefquant("doctor", "--quiet", "--json")
    assert before.err == behind.err == ""
    assert json.loads(before.out).keys() == json.loads(behind.out).keys()
    assert "No such" not in clefquant("inspect", "--", "--json").err


def test_a_defect_keeps_its_traceback(clefquant, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("clefquant.export.inspection.inspect", broken)
    with pytest.raises(ZeroDivisionError):
        clefquant("inspect", "nano")


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.ENOSPC, 3, "f: No space left on device. Free space"),
        (errno.EROFS, 3, "f: Read-only file system. Choose a place"),
        (errno.ENOTDIR, 2, "f: Not a directory. Check the path."),
    ],
)
def test_what_the_system_refuses(number, code, words):
    import os

    message, found = explain(OSError(number, os.strerror(number), "f")) or ("", 0)
    assert found == code
    assert words in message
    assert explain(OSError(errno.EBADF, "defect")) is None


def test_an_empty_configuration(clefquant, tmp_path):
    (tmp_path / "c.yaml").write_text("")
    assert "c.yaml is empty; a configuration is" in clefquant("run", tmp_path / "c.yaml").err
