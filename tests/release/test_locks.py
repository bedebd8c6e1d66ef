"""Two commands do not write one folder, and a killed one keeps nobody out."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from clefquant.errors import InputError
from clefquant.release.locks import locked

HOLDER = """
import sys, time
from pathlib import Path
from clefquant.release.locks import locked
with locked(Path("out"), Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, tmp_path / "lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_refused_and_the_first_keeps_its_lock(tmp_path, holder):
    for _ in range(2):
        with pytest.raises(InputError, match="another command is writing out"), locked("out", tmp_path / "lock"):
            pass
    assert (tmp_path / "lock").exists()


def test_a_killed_holder_keeps_nobody_out(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").exists()
    with locked("out", tmp_path / "lock"):
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()


def test_a_file_that_its_holder_has_removed_is_no_lock(tmp_path, monkeypatch):
    """It was opened before the holder ended; somebody else may hold a new file of that name by now."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: (tmp_path / "lock").unlink())
    with pytest.raises(InputError, match="another command"), locked("out", tmp_path / "lock"):
        pass
