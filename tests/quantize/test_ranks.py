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


def quantize(tiny, calibration, out, *options, processes=1):
    launch = [BIN / "torchrun", "--nproc-per-node", str(processes), "--no-python"] if processes > 1 else []
    command = [*launch, BIN / "clefquant", "--json", "quantize", "--model", tiny.path, "--scheme", "nvfp4"]
    command += ["--calibration", calibration, "--out", out, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
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


def test_awq_refuses_company(tiny, encoded, monkeypatch):
    from clefquant.errors import InputError
    from clefquant.quantize import algorithms
    from clefquant.quantize.ranks import Ranks
    from clefquant.recipes.layout import uniform_layout

    monkeypatch.setattr(algorithms, "ranks", lambda: Ranks(0, 2))
    with pytest.raises(InputError, match="awq runs in one process"):
        next(algorithms.ALGORITHMS["awq"](tiny, uniform_layout(tiny, "mxfp4"), encoded))
