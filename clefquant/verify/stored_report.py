"""Reading the ``report.json`` of an earlier verification, and the bytes it measured, without any of what makes one."""

import hashlib
from pathlib import Path
from typing import Any

from clefquant.release.artefact import read_json

KIND = "verify report"
SCHEMA_VERSION = 1
#: The key under which a report names the release it measured.
RELEASE_KEY = "release_sha256sums"
#: The report's copy in a release.
REPORT_FILE = "verify_report.json"
#: What is filled in after a verification and decides no answer.
_AFTERWARDS = ("README.md", REPORT_FILE)


def read_report(path: Path) -> dict[str, Any]:
    """A report's value, from its folder or its ``report.json``. InputError when it is none."""
    return read_json(path / "report.json" if path.is_dir() else path, KIND, SCHEMA_VERSION)


def measured_sha256(folder: Path) -> str | None:
    """sha256 of the lines of ``SHA256SUMS`` without the card's and the report's; None when there is no such file.

    It stays as it is when figures or the repository's name are put on the card, and names every other byte.
    """
    try:
        lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    kept = sorted(line for line in lines if line[66:] not in _AFTERWARDS)  # 64 digits, two characters, the path
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()
