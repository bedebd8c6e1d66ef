"""CSV and Parquet files as rows of named columns."""

import csv
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clefquant.calibration.sources.json_lines import BYTE_ORDER_MARK, decode, parse
from clefquant.calibration.sources.rows import Row
from clefquant.errors import InputError

BATCH_ROWS = 64


@dataclass(frozen=True)
class CsvFile:
    """A CSV (or TSV) file with a header line. A value is a row's columns as text."""

    path: Path

    def count(self) -> int:
        """Rows below the header."""
        return sum(1 for _ in self.read())

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Each row, placed by the line it ends on (a quoted cell may span lines). InputError for a broken header."""
        csv.field_size_limit(sys.maxsize)
        faults: list[str] = []
        reader = csv.reader(
            self._lines(faults), delimiter="\t" if self.path.suffix.lower() == ".tsv" else ",", strict=True
        )
        header, position = self._header(reader, faults), -1
        while True:
            fault: str | None = None
            try:
                cells = next(reader, None)
            except csv.Error as error:
                cells, fault = [], f"not CSV: {error}"
            if cells is None:
                return
            if not cells and fault is None:
                continue
            position += 1
            fault = faults.pop() if faults else fault
            if fault is None and len(cells) != len(header):
                fault = f"{len(cells)} cells, the header names {len(header)} columns"
            if wanted is None or position in wanted:
                value = None if fault else dict(zip(header, cells, strict=True))
                yield Row(f"{self.path.name} line {reader.line_num}", value, fault)

    def _header(self, reader: Iterator[list[str]], faults: list[str]) -> list[str]:
        """Names of the columns. InputError when they cannot be read: then no row can."""
        try:
            header = next(reader, [])
        except csv.Error as error:
            faults.append(f"not CSV: {error}")
            header = []
        if faults:
            raise InputError(f"{self.path}: its header line: {faults[0]}.")
        return header

    def _lines(self, faults: list[str]) -> Iterator[str]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    yield decode(line.removeprefix(BYTE_ORDER_MARK) if number == 0 else line)
                except ValueError as error:
                    faults[:] = [str(error)]
                    yield line.decode("utf-8", "replace")


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file. ``class_names``: of integer columns that are class labels on the Hub."""

    path: Path

    @cached_property
    def _file(self) -> Any:
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(self.path)
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise InputError(f"{self.path} cannot be read as Parquet: {error}") from error

    @cached_property
    def class_names(self) -> dict[str, list[str]]:
        """Names of class labels by column."""
        metadata = self._file.schema_arrow.metadata or {}
        try:
            features = parse(metadata[b"huggingface"].decode())["info"]["features"]
        except (KeyError, ValueError, TypeError):
            return {}
        return {
            name: list(feature["names"])
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }

    def struct_columns(self) -> set[str]:
        """Columns whose cells are structs, where Parquet fills missing fields with null."""
        import pyarrow

        return {field.name for field in self._file.schema_arrow if pyarrow.types.is_struct(field.type)}

    def count(self) -> int:
        """Rows of the file."""
        return int(self._file.metadata.num_rows)

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Each row as a mapping of column to Python value; row groups without a wanted row are not read."""
        first = 0
        for group in range(self._file.num_row_groups):
            rows = self._file.metadata.row_group(group).num_rows
            if wanted is None or any(position in wanted for position in range(first, first + rows)):
                position = first
                for batch in self._file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group]):
                    yield from self._batch(batch, position, wanted)
                    position += batch.num_rows
            first += rows

    def _batch(self, batch: Any, first: int, wanted: Collection[int] | None) -> Iterator[Row]:
        for index in range(batch.num_rows):
            if wanted is None or first + index in wanted:
                value = {name: batch.column(i)[index].as_py() for i, name in enumerate(batch.schema.names)}
                yield Row(f"{self.path.name} row {first + index + 1}", value)
