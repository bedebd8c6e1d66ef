"""Rows of a file, whatever its format: each with its place, and as a value or as the reason why it is none."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clefquant.errors import InputError


@dataclass(frozen=True)
class Row:
    """One row. ``place``: file and line or row number, both from 1, for messages. ``fault``: why there is no value."""

    place: str
    value: Any = None
    fault: str | None = None


class RowFile(Protocol):
    """A file of rows that is read front to back, as often as needed."""

    def count(self) -> int:
        """Rows in the file, good and bad."""

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Rows in file order; with ``wanted`` only those whose number (from 0) is in it."""


def open_rows(path: Path) -> RowFile:
    """The reader for a file, by its suffix. InputError when there is no such file or no reader for it."""
    from clefquant.calibration.sources.json_array import JsonArray, looks_like_array
    from clefquant.calibration.sources.json_lines import JsonLines
    from clefquant.calibration.sources.tables import CsvFile, ParquetFile

    if not path.is_file():
        raise InputError(f"there is no file {path}; a source's path is relative to the mixture's folder.")
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson", ".json", ".log"):
        return JsonArray(path) if looks_like_array(path) else JsonLines(path)
    if suffix in (".csv", ".tsv"):
        return CsvFile(path)
    if suffix == ".parquet":
        return ParquetFile(path)
    raise InputError(
        f"{path}: no reader for {suffix or 'files without a suffix'}; use .jsonl, .json, .csv or .parquet."
    )
