"""The figures of a verify report that a card may state: only what was measured, with where it was measured."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from clefquant.errors import InputError

_COLUMNS = (
    ("agreement", "Same top option", "{:.1%}"),
    ("kl", "Mean KL", "{:.4f}"),
    ("tv", "Mean TV", "{:.4f}"),
    ("accuracy_reference", "Accuracy BF16", "{:.1%}"),
    ("accuracy", "Accuracy, this model", "{:.1%}"),
)


class Row(NamedTuple):
    """One line of the card's table."""

    name: str
    values: list[str]


@dataclass(frozen=True)
class Figures:
    """What the card shows. ``measured``: how and where; ``speed``: tables of an engine that really ran, else None."""

    measured: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]
    speed: str | None


def gate_passed(report: dict[str, Any]) -> bool | None:
    """Whether every limit of the report's gate was kept; None when it was made without a gate."""
    gate = report.get("gate")
    if not isinstance(gate, dict) or not gate.get("limits"):
        return None
    return all(limit.get("passed") is True for limit in gate["limits"])


def failed_limits(report: dict[str, Any]) -> list[str]:
    """The limits that were not kept, as short text."""
    gate = report.get("gate") or {}
    return [f"{limit['row']}: {limit['limit']}" for limit in gate.get("limits", ()) if limit.get("passed") is not True]


def report_figures(report: dict[str, Any]) -> Figures:
    """Figures of a report; a measure that was not taken has no column."""
    tables = report.get("tables") or {}
    groups = [row for row in tables.get("groups", ()) if len(tables["groups"]) > 1]
    rows = [*groups, *({**row, "name": "All"} for row in tables.get("all", ())[:1])]
    columns = [column for column in _COLUMNS if any(_value(row, column[0]) is not None for row in rows)]
    if not columns:
        raise InputError("the report holds no agreement and no KL; verify the release again.")
    lines = []
    for row in rows:
        found = [(_value(row, key), form) for key, _, form in columns]
        cells = ["–" if value is None else form.format(value) for value, form in found]
        lines.append(Row(str(row["name"]), [f"{row.get('questions', 0):,}", *cells]))
    return Figures(_measured(report), ["Questions", *(c[1] for c in columns)], lines, _notes(report), _speed(report))


def _value(row: dict[str, Any], key: str) -> float | None:
    """The estimate of a figure, which is a number or an object with its interval."""
    found = row.get(key)
    found = found.get("value") if isinstance(found, dict) else found
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _measured(report: dict[str, Any]) -> str:
    backend, performance = report.get("backend") or {}, report.get("performance") or {}
    engine = str(backend.get("engine", "an engine the report does not name"))
    place = performance.get("chip") or backend.get("device")
    sets = [f"{one['name']} ({one['records']:,} records)" for one in report.get("sets", ())]
    return f"{engine}{f', on {place}' if place else ''}{'; ' + ', '.join(sets) if sets else ''}"


def _notes(report: dict[str, Any]) -> list[str]:
    notes = []
    for row in report.get("noise") or ():
        kl, agreement = _value(row, "kl"), _value(row, "agreement")
        if kl is not None and agreement is not None:
            notes.append(f"{row['name']} (the noise floor): mean KL {kl:.1e}, same top option {agreement:.1%}.")
    row = ((report.get("tables") or {}).get("all") or [{}])[0]
    if row.get("confident"):
        notes.append(f"Of {row['confident']:,} answers BF16 is sure of, {row.get('confident_flips', 0):,} changed.")
    return notes


def _speed(report: dict[str, Any]) -> str | None:
    if not report.get("performance"):
        return None
    from clefquant.verify.markdown import performance_tables

    return performance_tables(report["performance"])
