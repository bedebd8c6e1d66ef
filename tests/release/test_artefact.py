"""Outputs appear whole or not at all."""

import subprocess
import sys

import pytest

from clefquant.errors import InputError
from clefquant.release.artefact import new_file, new_folder, read_json, write_json


def test_folder_appears_whole(folder):
    with new_folder(folder) as work:
        (work / "a").write_text("x")
        assert not folder.exists()
    assert (folder / "a").read_text() == "x"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_folder_does_not_appear_after_a_failure(folder, failure):
    with pytest.raises(failure), new_folder(folder) as work:
        (work / "a").write_text("x")
        raise failure
    assert list(folder.parent.iterdir()) == []


def test_refuses_a_folder_with_content(folder):
    folder.mkdir()
    (folder / "mine").write_text("keep")
    with pytest.raises(InputError, match="is not empty"), new_folder(folder):
        pass
    assert (folder / "mine").read_text() == "keep"


def test_refuses_a_file(folder):
    folder.write_text("keep")
    with pytest.raises(InputError, match="is a file"), new_folder(folder):
        pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "layout", "schema_version": 9}, "Update clefquant"),
        ({"kind": "run", "schema_version": 1}, "is a run, expected a layout"),
        ({"kind": "layout"}, "schema_version None"),
        ([], "is a list"),
    ],
)
def test_refuses_what_it_cannot_read(tmp_path, value, message):
    write_json(tmp_path / "x.json", value)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "x.json", "layout", 1)


KILLED = """
import sys, time
from pathlib import Path
from clefquant.release.artefact import new_file, new_folder
with new_folder(Path(sys.argv[1]) / "folder") as work, new_file(Path(sys.argv[1]) / "file") as file:
    (work / "a").write_text("x")
    file.write_text("x")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        theirs = set(tmp_path.iterdir())
        assert len(theirs) == 2

        def write():
            with new_folder(tmp_path / "folder") as work:
                (work / "a").write_text("mine")
            with new_file(tmp_path / "file") as work:
                work.write_text("mine")

        write()
        assert theirs < set(tmp_path.iterdir())
        process.kill()
    (tmp_path / "folder" / "a").unlink()
    write()
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}
    assert (tmp_path / "folder" / "a").read_text() == (tmp_path / "file").read_text() == "mine"
