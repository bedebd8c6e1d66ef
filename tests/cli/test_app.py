"""Exit codes and messages that every command shares."""

import json

import pytest

from clefquant import __version__
from clefquant.cli.app import COMMANDS


def test_version_and_help(clefquant):
    assert clefquant("--version").out == f"clefquant {__version__}\n"
    shown = clefquant("--help").out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(clefquant, command):
    done = clefquant(command, "--help")
    assert done.code == 0
    assert f"clefquant {command}" in " ".join(done.out.split())


def test_wrong_usage(clefquant):
    assert clefquant("quantize", "--no-such-flag").code == 2
    assert clefquant("no-such-command").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "./nowhere", "--scheme", "fp8"), "no model at ./nowhere"),
        (("--model", "{tiny}", "--scheme", "fp3"), "unknown format 'fp3'; allowed: fp8"),
        (("--model", "{tiny}", "--scheme", "nvfp4"), "nvfp4 needs --calibration SET"),
        (("--model", "{tiny}", "--scheme", "nvfp4", "--calibration", "nowhere"), "nowhere"),
        (("--model", "{tiny}", "--scheme", "fp8", "--algorithm", "magic"), "allowed: rtn, gptq"),
        (("--model", "{tiny}"), "give either --scheme"),
    ],
)
def test_quantize_refusals_write_nothing(clefquant, tiny, folder, arguments, message):
    done = clefquant("quantize", *(a.format(tiny=tiny.path) for a in arguments), "--out", folder)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert list(folder.parent.iterdir()) == []


def test_out_that_is_not_empty(clefquant, tiny, folder):
    folder.mkdir()
    (folder / "mine").write_text("keep")
    done = clefquant("quantize", "--model", tiny.path, "--scheme", "fp8", "--out", folder)
    assert (done.code, [file.name for file in folder.iterdir()]) == (2, ["mine"])
    assert "is not empty" in done.err


def test_quantize_and_refuse_its_own_output(clefquant, tiny, folder, tmp_path):
    done = clefquant("--json", "quantize", "--model", tiny.path, "--scheme", "fp8", "--out", folder)
    assert done.code == 0
    assert json.loads(done.out)["paths"] == {"checkpoint": str(folder)}
    assert "next: clefquant export" in done.err
    again = clefquant("quantize", "--model", folder, "--scheme", "nvfp4", "--out", tmp_path / "again")
    assert again.code == 2
    assert "already quantized (float-quantized)" in again.err


def test_ctrl_c(clefquant, tiny, folder, monkeypatch):
    from clefquant.quantize import calibrated

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrated, "write_checkpoint", interrupt)
    done = clefquant("quantize", "--model", tiny.path, "--scheme", "fp8", "--out", folder)
    assert done.code == 130
    assert "run the same command again" in done.err


def test_full_disk_is_a_prerequisite(clefquant, tiny, folder, monkeypatch):
    from clefquant.quantize import calibrated

    def full(*_, **__):
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(calibrated, "write_checkpoint", full)
    done = clefquant("quantize", "--model", tiny.path, "--scheme", "fp8", "--out", folder)
    assert done.code == 3
    assert "No space left on device" in done.err


def test_doctor(clefquant):
    done = clefquant("--json", "doctor")
    facts = {fact["name"]: fact for fact in json.loads(done.out)["facts"]}
    assert facts["torch"]["ok"]
    assert facts["memory"]["ok"] is None
    assert done.code == 0


def test_doctor_names_what_is_missing(clefquant, monkeypatch):
    from clefquant.cli import machine

    monkeypatch.setattr(machine, "PACKAGES", (("no-such-package", "==1.0", "this test"),))
    done = clefquant("doctor")
    assert done.code == 3
    assert "uv pip install 'no-such-package==1.0'" in done.err


@pytest.mark.parametrize(
    ("capability", "words"), [((12, 0), "FP4 in hardware"), ((9, 0), "weight-only"), ((8, 0), "no FP8 or FP4")]
)
def test_doctor_says_what_a_gpu_does_with_each_format(capability, words):
    from clefquant.cli.machine import kernel_note

    assert words in kernel_note(capability)
