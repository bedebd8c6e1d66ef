"""A release's files beside its SHA256SUMS. The probe notices what moves an answer; this notices a single bit.

Done before the engine starts: a disk slower than hashing is read once, because loading then finds the files in memory.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from clef_vllm.release import ReleaseError

SUMS = "SHA256SUMS"
FOLDERS = (".", "clef_head")
DECIDE_ANSWERS = (".safetensors", ".json", ".jinja", ".py")  # the card may be edited, the plugin is installed elsewhere


def compare_files(folder: Path) -> str:
    """Hash every file that decides an answer. A line for the log; ReleaseError names what is missing or differs."""
    if not (folder / SUMS).is_file():
        return f"clef-vllm: the release has no {SUMS}: its files were not compared at start"
    expected = read_sums(folder / SUMS)
    if missing := [name for name in expected if not (folder / name).is_file()]:
        raise ReleaseError(f"{folder} has no {missing[0]}, which its {SUMS} names; download the release again")
    # Large files first, or one of them is what everything waits for in the end.
    names = sorted(expected, key=lambda name: -(folder / name).stat().st_size)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "clef-sums") as pool:
        found = dict(zip(names, pool.map(lambda name: digest(folder / name), names), strict=True))
    if changed := sorted(name for name in names if found[name] != expected[name]):
        raise ReleaseError(
            f"{', '.join(changed)} in {folder} is not the file that was exported ({SUMS} has another checksum); "
            f"download the release again, or delete {SUMS} if you changed it yourself and mean to serve that"
        )
    return f"clef-vllm: {len(names)} files equal their checksums"


def read_sums(path: Path) -> dict[str, str]:
    """Relative path to sha256 of the files that decide an answer."""
    lines = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if any(len(line) != 2 for line in lines):
        raise ReleaseError(f"{path} has a line that is no checksum and path; download the release again")
    files = {name.removeprefix("*"): checksum.lower() for checksum, name in lines}
    return {name: checksum for name, checksum in files.items() if _decides(PurePosixPath(name))}


def digest(path: Path) -> str:
    """sha256 of a file, as hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def _decides(name: PurePosixPath) -> bool:
    return str(name.parent) in FOLDERS and name.suffix in DECIDE_ANSWERS
