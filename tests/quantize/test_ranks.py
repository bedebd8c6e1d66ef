"""Two processes, started as users would start them, write what one writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def calibration(game_set):
    return game_set(6)


#: The command line, cut off after it has saved what enters layer 2.
CUT_OFF = """
from functools import partial
from clefquant.cli.app import main
from clefquant.quantize import calibrated, unfinished

class CutOff(unfinished.Unfinished):
    def finish(self, layer, states):
        super().finish(layer, states)
        if layer == 1:
            raise KeyboardInterrupt

calibrated.Unfinished = partial(CutOff, pause_seconds=0)
main()
"""


def start(tiny, calibration, out, *options, processes=1, program=(BIN / "clefquant",)):
    launch = [BIN / "torchrun", "--nproc-per-node", str(processes), "--no-python"] if processes > 1 else []
    command = [*launch, *program, "--json", "quantize", "--model", tiny.path, "--scheme", "nvfp4"]
    command += ["--calibration", calibration, "--out", out, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def quantize(*arguments, **named):
    found = start(*arguments, **named)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_two_processes_write_what_one_writes(tiny, calibration, tmp_path, algorithm):
    for processes, name in ((1, "one"), (2, "two")):
        quantize(tiny, calibration, tmp_path / name, "--algorithm", algorithm, processes=processes)
    for file in ("model.safetensors", "config.json", "recipe.yaml", "layout.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    one, two = (json.loads((tmp_path / name / "input_statistics.json").read_text()) for name in ("one", "two"))
    for linear, seen in one["linears"].items():
        assert two["linears"][linear] == seen | {"rms": pytest.approx(seen["rms"], rel=1e-12)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_processes_goes_on(tiny, calibration, tmp_path, before, after):
    script, out = tmp_path / "cut_off.py", tmp_path / "out"
    script.write_text(CUT_OFF)
    assert start(tiny, calibration, out, processes=before, program=[sys.executable, script]).returncode
    (tmp_path / ".out.quantizing" / "mark").touch()  # starting over would remove it
    quantize(tiny, calibration, out, processes=after)
    assert (out / "mark").exists()
    quantize(tiny, calibration, tmp_path / "whole")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
