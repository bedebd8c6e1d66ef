"""Writing and reading artefacts: whole or not at all, with their origin, never silently newer than we know.

A folder or file is built beside its final place (a hidden sibling on the same file system) and renamed
when it is complete, so a crash, a full disk or Ctrl-C leaves either the old state or the new one. A process that is
killed cannot remove its sibling: it held a lock on it, so the next one that writes the same thing sees that it is
abandoned and removes it.
"""

import glob
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clefquant import __version__
from clefquant.errors import InputError
from clefquant.release.abandoned import SUFFIX, in_use, remove_abandoned

_PACKAGES = ("torch", "transformers", "llmcompressor", "compressed-tensors", "safetensors", "numpy")
_HASH_BLOCK_BYTES = 8 << 20


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Hex sha256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """One spelling per JSON value: sorted keys, no spaces, no ASCII escapes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty temporary sibling of ``target``; rename it to ``target`` on success, remove it on failure.

    Raises InputError when ``target`` exists and is not an empty folder, or its parent cannot be written.
    """
    check_new_folder(target)
    made = _sibling(target)
    try:
        made.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"cannot write beside {target}: {error.strerror}. Choose a writable --out.") from error
    with in_use(made) as work:
        try:
            yield work
            if target.exists():
                target.rmdir()
            os.replace(work, target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


def check_new_folder(target: Path) -> None:
    """Refuse an output folder that already holds something."""
    if target.is_dir() and any(target.iterdir()):
        raise InputError(f"{target} is not empty. Choose a new folder, or remove this one first.")
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; name a folder that does not exist yet.")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path``; rename it to ``path`` on success, remove it on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = _sibling(path)
    made.touch()
    with in_use(made) as work:
        try:
            yield work
            os.replace(work, path)
        except BaseException:
            work.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all (UTF-8, LF)."""
    with new_file(path) as work:
        work.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all, two-space indent, keys in the given order."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def provenance(kind: str, schema_version: int, parents: dict[str, str], seed: int | None = None) -> dict[str, Any]:
    """Head of every artefact: its kind and schema, the sha256 of what it was made from, versions, seed, command."""
    return {
        "kind": kind,
        "schema_version": schema_version,
        "parents": parents,
        "seed": seed,
        "command": ["clefquant", *sys.argv[1:]],
        "versions": {"clefquant": __version__, **package_versions()},
    }


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide the numbers (absent ones are left out)."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read_json(path: Path, kind: str, schema_version: int) -> dict[str, Any]:
    """Read an artefact's JSON; refuse another kind and a schema newer than ``schema_version``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows add the mark
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected a {kind} written by clefquant.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; expected the file of a {kind}.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict) or value.get("kind", kind) != kind:
        found = value.get("kind") if isinstance(value, dict) else type(value).__name__
        raise InputError(f"{path} is a {found}, expected a {kind}.")
    version = value.get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise InputError(f"{path} has schema_version {version!r}; expected a number from 1 to {schema_version}.")
    if version > schema_version:
        raise InputError(
            f"{path} has schema_version {version}, this clefquant ({__version__}) reads up to {schema_version}. "
            "Update clefquant to read it."
        )
    return value


def _sibling(target: Path) -> Path:
    """Path of new work in progress; what killed processes left of theirs is removed."""
    remove_abandoned(target.parent, f".{glob.escape(target.name)}.*{SUFFIX}")
    return target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}"
