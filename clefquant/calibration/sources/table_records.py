"""Rows to drafts: rows that are records already, or are mapped by a template or by the adapter of a public task."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clefquant.calibration.check import BadRecord
from clefquant.calibration.draft import Draft
from clefquant.calibration.source_config import FileSource, HubSource, RequestLogSource
from clefquant.calibration.sources.adapters import ADAPTERS
from clefquant.calibration.sources.adapters.task import Mapped
from clefquant.calibration.sources.order import in_order
from clefquant.calibration.sources.rows import Row, RowFile
from clefquant.calibration.sources.tables import CsvFile, ParquetFile
from clefquant.calibration.sources.template import fill
from clefquant.errors import InputError

#: Keys of a record's line beside the record itself.
_ANSWER_KEYS = ("answers", "gold", "labels")


def table_drafts(
    source: FileSource | HubSource, files: Sequence[RowFile], base: Path, seed: int, count: int | None
) -> Iterator[Draft]:
    """Drafts from files of rows. ``base``: the folder that media paths are relative to and may not leave."""
    check_adapter(source)
    draw = f"{source.name}/{seed}" if source.order == "random" else None
    for index, (file, row) in enumerate(in_order(files, draw, count)):
        yield _draft(source, file, row, base, f"{index:06d}", seed)


def request_drafts(
    source: RequestLogSource, file: RowFile, base: Path, seed: int, count: int | None
) -> Iterator[Draft]:
    """Drafts from SystemOne request bodies, bare or under ``request`` as logs keep them."""
    draw = f"{source.name}/{seed}" if source.order == "random" else None
    for index, (_, row) in enumerate(in_order([file], draw, count)):
        value = row.value
        if isinstance(value, Mapping) and isinstance(value.get("request"), Mapping):
            value = value["request"]
        fault = row.fault
        if fault is None and not isinstance(value, Mapping):
            fault = f"a request is an object, got {type(value).__name__}"
        yield Draft(row.place, f"{index:06d}", dict(value) if fault is None else {}, base=base, fault=fault)


def check_adapter(source: FileSource | HubSource) -> None:
    """InputError when the adapter or one of its options is not known."""
    name = source.adapter
    if name is None:
        return
    if name not in ADAPTERS:
        raise InputError(f"{source.name}: there is no adapter {name!r}; use one of {', '.join(ADAPTERS)}.")
    allowed = ADAPTERS[name].options()
    if unknown := [option for option in source.options if option not in allowed]:
        takes = ", ".join(allowed) or "no options"
        raise InputError(f"{source.name}: the adapter {name} takes {takes}, got {', '.join(unknown)}.")


def _draft(source: FileSource | HubSource, file: RowFile, row: Row, base: Path, number: str, seed: int) -> Draft:
    if row.fault is not None:
        return Draft(row.place, number, fault=row.fault)
    names = {**(file.class_names if isinstance(file, ParquetFile) else {}), **source.labels}
    try:
        if source.adapter is not None:
            rng = random.Random(f"{source.name}/{seed}/{row.place}")
            mapped = ADAPTERS[source.adapter].record(row.value, names, rng, **source.options)
        elif source.columns is not None:
            mapped = _from_template(source.columns, row.value, names)
        else:
            mapped = _as_it_is(row.value, file)
    except BadRecord as error:
        return Draft(row.place, number, fault=str(error))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if source.adapter is None:
            raise
        return Draft(row.place, number, fault=f"not a row of {ADAPTERS[source.adapter].hub}: {error!r}")
    return Draft(row.place, mapped.record_id or number, mapped.record, mapped.answers, mapped.group, base=base)


def _from_template(columns: Mapping[str, Any], row: Any, names: Mapping[str, list[str]]) -> Mapped:
    if not isinstance(row, Mapping):
        raise BadRecord(f"a row is an object of columns, got {type(row).__name__}")
    filled = fill(dict(columns), row, names)
    return _split(filled)


def _as_it_is(value: Any, file: RowFile) -> Mapped:
    if not isinstance(value, Mapping):
        raise BadRecord(f"a record is an object with state and questions, got {type(value).__name__}")
    if isinstance(file, ParquetFile) and "questions" in file.struct_columns():
        raise InputError(
            f"{file.path}: questions is a struct column, in which every record has all other records' questions and "
            "options as null. Store questions as JSON text, or give columns: in the mixture."
        )
    if isinstance(file, (ParquetFile, CsvFile)):
        value = {
            key: _json_cell(cell) if key in ("questions", *_ANSWER_KEYS, "images") else cell
            for key, cell in value.items()
        }
    return _split(value)


def _json_cell(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell)
    except ValueError as error:
        raise BadRecord(f"a cell that should hold JSON does not: {error}") from error


def _split(value: Mapping[str, Any]) -> Mapped:
    answers = next((value[key] for key in _ANSWER_KEYS if value.get(key) is not None), None)
    own = value.get("id")
    return Mapped(dict(value), answers, str(value.get("group") or ""), "" if own is None else str(own))
