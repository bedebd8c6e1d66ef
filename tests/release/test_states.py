import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clefquant.release.states import States

CPU = torch.device("cpu")


def test_states_spill_to_disk_and_come_back_bit_equal(tmp_path: Path):
    tensors = {number: torch.randn(4, 8, dtype=torch.bfloat16) for number in range(4)}
    with States(2 * 4 * 8 * 2, tmp_path) as states:
        for key, tensor in tensors.items():
            states.put(key, tensor)
        assert states.spilled == 2
        assert all(torch.equal(states.get(key, CPU), tensor) for key, tensor in tensors.items())
        states.put(3, tensors[0])
        assert torch.equal(states.get(3, CPU), tensors[0])
        states.drop(0)
        states.put(2, tensors[2])
        assert states.spilled == 1
        assert any(tmp_path.iterdir())
    assert not any(tmp_path.iterdir())


FILL = """
import os, sys, torch
from pathlib import Path
from clefquant.release.states import States
states = States(0, Path(sys.argv[1]))
states.put(0, torch.zeros(8))
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_spilled_is_removed(tmp_path: Path):
    assert subprocess.run([sys.executable, "-c", FILL, tmp_path], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    with States(0, tmp_path) as states, States(0, tmp_path) as others:
        states.put(0, torch.ones(8))
        others.put(0, torch.zeros(8))
        assert torch.equal(states.get(0, CPU), torch.ones(8)), "those of a living process stay"
    assert not any(tmp_path.iterdir())


def test_a_failed_write_is_the_error_of_the_system(tmp_path: Path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with States(0, tmp_path) as states, pytest.raises(OSError, match="File too large"):
            states.put(0, torch.zeros(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not any(tmp_path.iterdir())
