"""``SHA256SUMS``: one line per file of a release, in the form that ``sha256sum --check`` reads."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from clefquant.release.artefact import sha256_file, write_text

SUMS_FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


class Sums(NamedTuple):
    """``files``: relative path to sha256; ``unread``: lines that are no checksum line."""

    files: dict[str, str]
    unread: list[str]


def parse_sums(text: str) -> Sums:
    """Read the lines of a checksum file; nothing is trusted about the paths it names."""
    files, unread = {}, []
    for line in text.splitlines():
        if not line.strip():
            continue
        if found := _LINE.fullmatch(line):
            files[found[2]] = found[1].lower()
        else:
            unread.append(line)
    return Sums(files, unread)


def format_sums(files: Mapping[str, str]) -> str:
    """The text of a checksum file, sorted by path."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))


def release_files(folder: Path) -> Iterator[str]:
    """Relative paths (with ``/``) of every file but the checksum file, sorted; the ``.git`` and cache folders are not
    part."""
    for file in sorted(folder.rglob("*")):
        relative = file.relative_to(folder)
        outside = relative.parts[0] in (".git", ".cache") or relative.as_posix() == SUMS_FILE
        if not outside and (file.is_symlink() or not file.is_dir()):
            yield relative.as_posix()


def write_sums(folder: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Write ``SHA256SUMS``; ``known`` digests are taken as they are. Returns all of them."""
    files = {name: (known or {}).get(name) or sha256_file(folder / name) for name in release_files(folder)}
    write_text(folder / SUMS_FILE, format_sums(files))
    return files


def sums_sha256(files: Mapping[str, str]) -> str:
    """sha256 of the checksum file that ``files`` make: names a release by its bytes."""
    return hashlib.sha256(format_sums(files).encode()).hexdigest()
