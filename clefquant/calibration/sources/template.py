"""Records from named columns: a template is a record in which ``{column}`` stands for a row's cell.

A string that is nothing but ``{column}`` becomes the cell itself, with its type; inside longer strings the cell is put
in as text. ``{{`` and ``}}`` are braces. ``{column.name}`` is the name of an integer class label. Lists and objects are
filled through, their keys included.
"""

import re
from collections.abc import Mapping
from typing import Any

from clefquant.calibration.check import BadRecord

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


def fill(template: Any, row: Mapping[str, Any], names: Mapping[str, list[str]]) -> Any:
    """The template with a row's cells. BadRecord when it names a column that is not there."""
    if isinstance(template, str):
        return _fill_text(template, row, names)
    if isinstance(template, Mapping):
        filled: dict[str, Any] = {}
        for key, value in template.items():
            name = str(_fill_text(key, row, names)) if isinstance(key, str) else key
            if name in filled:
                raise BadRecord(f"two keys of the template become {name!r}")
            filled[name] = fill(value, row, names)
        return filled
    if isinstance(template, list):
        return [fill(item, row, names) for item in template]
    return template


def _fill_text(text: str, row: Mapping[str, Any], names: Mapping[str, list[str]]) -> Any:
    whole = _FIELD.fullmatch(text)
    if whole and whole[1]:
        return _cell(whole[1], row, names)

    def put(match: re.Match[str]) -> str:
        return str(_cell(match[1], row, names)) if match[1] else match[0][0]

    return _FIELD.sub(put, text)


def _cell(field: str, row: Mapping[str, Any], names: Mapping[str, list[str]]) -> Any:
    if field in row:
        return row[field]
    column, _, part = field.rpartition(".")
    if part == "name" and column in row:
        return class_name(column, row, names)
    raise BadRecord(f"the template names the column {field!r}; the row has {', '.join(map(str, row))}")


def class_name(column: str, row: Mapping[str, Any], names: Mapping[str, list[str]]) -> str:
    """Name of an integer class label. BadRecord when the names are not known or the label is none of them."""
    known, label = names.get(column), row.get(column)
    if not known:
        raise BadRecord(
            f"the names of the classes in column {column!r} are not in the file; give them as labels: in the mixture"
        )
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < len(known):
        raise BadRecord(f"{column}: the label {label!r} is not one of 0 to {len(known) - 1}")
    return known[label]
