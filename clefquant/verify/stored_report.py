"""Reading the ``report.json`` of an earlier verification, without any of what makes one."""

from pathlib import Path
from typing import Any

from clefquant.release.artefact import read_json

KIND = "verify report"
SCHEMA_VERSION = 1


def read_report(path: Path) -> dict[str, Any]:
    """A report's value, from its folder or its ``report.json``. InputError when it is none."""
    return read_json(path / "report.json" if path.is_dir() else path, KIND, SCHEMA_VERSION)
