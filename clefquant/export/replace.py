"""A changed copy of a folder, in a new place or in the old one; the original is untouched until the copy is whole."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from clefquant.release.artefact import new_folder


class Change(NamedTuple):
    """``work``: the folder to fill. ``keep(name)`` puts a file of the original there unchanged."""

    source: Path
    work: Path
    linked: bool

    def keep(self, name: str, new_name: str | None = None) -> None:
        """Take one file (a relative path) over unchanged: as a link when the original goes away, else as a copy."""
        target = self.work / (new_name or name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.linked and not (self.source / name).is_symlink():
            os.link(self.source / name, target)
        else:
            shutil.copyfile(self.source / name, target)


@contextmanager
def changed_copy(source: Path, out: Path | None) -> Iterator[Change]:
    """Yield the change to make; on success ``out`` is the copy, or ``source`` is replaced by it when ``out`` is
    None."""
    if out is not None:
        with new_folder(out) as work:
            yield Change(source, work, linked=False)
        return
    source = source.resolve()
    fresh, old = _beside(source)
    shutil.rmtree(fresh, ignore_errors=True)
    with new_folder(fresh) as work:
        yield Change(source, work, linked=True)
    os.replace(source, old)
    try:
        os.replace(fresh, source)
    except BaseException:
        os.replace(old, source)
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    shutil.rmtree(old)


def settle(folder: Path) -> None:
    """End a replacement of ``folder`` in its own place that was killed between its renames, and remove what is left."""
    folder = folder.resolve()
    fresh, old = _beside(folder)
    for whole in (fresh, old):  # both are, as they have their names
        if not folder.exists() and whole.is_dir():
            os.replace(whole, folder)
        shutil.rmtree(whole, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.parent / f".{folder.name}.new", folder.parent / f".{folder.name}.old"
