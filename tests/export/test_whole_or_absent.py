"""Export, shrink-tables and repair on a full disk, a read-only place, an existing target, and when they are stopped."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clefquant.errors import InputError
from clefquant.export.release_folder import export_release
from clefquant.export.repair import repair
from clefquant.export.tables import restore_tables, shrink_tables

COMMANDS = {
    "export": export_release,
    "shrink": shrink_tables,
    "repair": repair,
    "restore": restore_tables,
}


@pytest.fixture(params=COMMANDS)
def work(request, mixed, tmp_path):
    """A command from a folder to a new one, with the folder."""
    source = tmp_path / "source"
    if request.param == "restore":
        shrink_tables(mixed, source)
    else:
        shutil.copytree(mixed, source)
    return COMMANDS[request.param], source


def _content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_existing_target_is_left_as_it_is(work, tmp_path):
    command, source = work
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        command(source, target)
    assert _content(target) == {"mine.txt": b"mine"}
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        command(source, file)


def test_a_read_only_place(work, tmp_path, monkeypatch):
    command, source = work
    made = Path.mkdir

    def refuse(self, *arguments, **options):
        if self.is_relative_to(tmp_path / "locked"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        made(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"cannot write beside .*Read-only file system.*--out"):
        command(source, tmp_path / "locked" / "out")
    assert not (tmp_path / "locked").exists()


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=repr)
def test_a_copy_that_is_stopped_leaves_nothing(work, tmp_path, monkeypatch, stop):
    """Stopped at the first and second file it finishes, and at the folder itself."""
    command, source = work
    before, rename, done = _content(source), os.replace, []
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append(paths), rename(*paths)))
    command(source, tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    for at in (0, 1, len(done) - 1):
        left = [at]

        def refuse(*paths, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise stop
            rename(*paths)

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(type(stop)):
            command(source, tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["source"]
        assert _content(source) == before


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
sys.argv = ["clefquant", *sys.argv[1:]]
from clefquant.cli.app import main
main()
"""


@pytest.mark.parametrize("command", ["export", "shrink-tables", "audit"])
def test_the_kernel_refuses_to_write(mixed, tmp_path, command):
    """A real refusal in the middle of the largest file: one sentence, exit code 3, nothing left."""
    source = shutil.copytree(mixed, tmp_path / "source")
    more = ["--repair"] if command == "audit" else []
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, command, source, "--out", tmp_path / "out", *more],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
