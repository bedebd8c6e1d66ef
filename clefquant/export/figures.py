"""The figures of a verify report that a card may state: only what was measured, with where it was measured."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clefquant.errors import InputError

#: The key under which a report names the release it measured: sha256 of that release's ``SHA256SUMS``.
RELEASE_KEY = "release_sha256sums"
_COLUMNS = (("agreement", "Same top option", "{:.1%}"), ("kl", "Mean KL", "{:.4f}"), ("tv", "Mean TV", "{:.4f}"))
_METHODS = {
    "simulate": "simulated: weights as stored, inputs rounded as a server rounds them",
    "vllm": "vLLM",
    "http": "a running server",
}


class Row(NamedTuple):
    """One line of the card's table."""

    name: str
    values: list[str]


@dataclass(frozen=True)
class Figures:
    """What the card shows. ``hardware``: where it was measured; ``method``: how the release was run."""

    hardware: str
    method: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]


def read_report(path: Path) -> dict[str, Any]:
    """A verify report. InputError when it is not readable JSON or names no release."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as a verify report: {error}") from error
    if not isinstance(report, dict) or not isinstance(report.get(RELEASE_KEY), str):
        raise InputError(
            f"{path} does not say which release it measured ({RELEASE_KEY}); verify the exported release folder, "
            "not the checkpoint, and use that report.json."
        )
    return report


def gate_passed(report: dict[str, Any]) -> bool | None:
    """Whether the report's gate passed; None when it was made without a gate."""
    gate = report.get("gate")
    if isinstance(gate, dict) and isinstance(gate.get("passed"), bool):
        return bool(gate["passed"])
    return None


def report_figures(report: dict[str, Any]) -> Figures:
    """Figures of a report; a metric that was not measured has no column."""
    overall = _metrics(report.get("overall"))
    groups = report.get("groups")
    named = {str(name): _metrics(value) for name, value in groups.items()} if isinstance(groups, dict) else {}
    rows = [*named.items(), ("All", overall)] if named else [("All", overall)]
    columns = [column for column in _COLUMNS if any(column[0] in metrics for _, metrics in rows)]
    if not columns:
        raise InputError(
            f"the report holds none of {', '.join(key for key, _, _ in _COLUMNS)}; nothing to put on the card."
        )
    lines = [
        Row(name, [form.format(metrics[key]) if key in metrics else "–" for key, _, form in columns])
        for name, metrics in rows
    ]
    backend = str(report.get("backend", ""))
    return Figures(
        hardware=str(report.get("hardware") or "a machine the report does not name"),
        method=_METHODS.get(backend, backend),
        columns=[title for _, title, _ in columns],
        rows=lines,
        notes=_notes(report),
    )


def _metrics(value: Any) -> dict[str, float]:
    """Numbers of a metrics object; a value may be a number or an object with its estimate under ``value``."""
    found = {}
    for key, number in value.items() if isinstance(value, dict) else ():
        plain = number.get("value") if isinstance(number, dict) else number
        if isinstance(plain, int | float) and not isinstance(plain, bool):
            found[key] = float(plain)
    return found


def _notes(report: dict[str, Any]) -> list[str]:
    floor = _metrics(report.get("noise_floor"))
    if "kl" not in floor:
        return []
    agree = f", same top option {floor['agreement']:.1%}" if "agreement" in floor else ""
    return [f"BF16 against itself under other batching (the noise floor): mean KL {floor['kl']:.1e}{agree}."]
