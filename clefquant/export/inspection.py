"""One screen about anything clefquant writes: a release, a checkpoint, a set, a sensitivity table, a layout, a report.

Read from files alone, without torch; foreign checkpoints are described from their tensors and configuration.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from clefquant.calibration.stored import HEADER_FILE, read_header
from clefquant.errors import InputError
from clefquant.export.describe_model import describe_model
from clefquant.export.figures import failed_limits, gate_passed, report_figures
from clefquant.export.parts import layout_parts, picture

SENSITIVITY_FILE = "sensitivity.json"
REPORT_FILE = "report.json"


class Inspection(NamedTuple):
    """``kind``: what it is; ``lines``: for people, one screen; ``data``: for programs."""

    kind: str
    lines: list[str]
    data: dict[str, Any]


def inspect(reference: str) -> Inspection:
    """Describe a folder, a file, or ``nano``. InputError when it is nothing clefquant knows."""
    if reference == "nano":
        from clefquant.release.nano import cached_nano

        return Inspection("release", *describe_model(cached_nano()))
    path = Path(reference).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            lines, data = describe_model(path)
            return Inspection("checkpoint" if data["checkpoint"] else "release", lines, data)
        if (path / HEADER_FILE).is_file():
            return Inspection("calibration set", *_set(read_header(path)))
        for name in (SENSITIVITY_FILE, REPORT_FILE):
            if (path / name).is_file():
                return inspect(str(path / name))
    elif path.is_file():
        value = _object(path)
        kind = str(value.get("kind"))
        if kind in _READERS:
            try:
                return Inspection(kind, *_READERS[kind](value))
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise InputError(f"{path} calls itself a {kind}, but does not hold one: {error!r}.") from error
    else:
        raise InputError(f"there is nothing at {reference}.")
    known = "a release or checkpoint folder, a calibration set, a result folder of sensitivity or verify, or their JSON"
    raise InputError(f"{reference} is none of what inspect reads: {known}.")


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError:  # not JSON, not text
        return {}
    return value if isinstance(value, dict) else {}


def _set(header: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    lines = [
        f"{header.get('name', 'set')}: {header['records']:,} records, {header['tokens']:,} tokens, "
        f"{header.get('split', 'unknown')} split, seed {header.get('seed')}",
        f"longest record {header.get('longest_tokens', 0):,} tokens, limit {header.get('max_length', 0):,}",
        "",
    ]
    for source in header.get("sources", ()):
        asked = f" of {source['asked']:,} asked" if source.get("asked") else ""
        lines.append(
            f"  {source['name']:24} {source['records']:>8,} records{asked}, {source.get('tokens', 0):,} tokens, "
            f"licence {source.get('license', 'unknown')}"
        )
    return lines, header


def _report(report: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    figures = report_figures(report)
    verdict = report.get("verdict") or {}
    passed = gate_passed(report)
    gate = {None: "made without a gate", True: "gate passed"}.get(
        passed, f"gate failed: {'; '.join(failed_limits(report))}"
    )
    width = max(len(row.name) for row in figures.rows)
    lines = [
        str(verdict.get("headline", "")),
        figures.measured,
        gate,
        "",
        " " * width + "  " + "  ".join(figures.columns),
    ]
    for row in figures.rows:
        cells = "  ".join(f"{value:>{len(column)}}" for column, value in zip(figures.columns, row.values, strict=True))
        lines.append(f"{row.name:{width}}  {cells}")
    return [*lines, *figures.notes], {"figures": [row._asdict() for row in figures.rows], "gate_passed": passed}


def _layout(layout: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    units: dict[str, str] = layout["units"]
    lines = [
        f"{layout.get('model')}: {layout.get('bytes', 0) / 1e6:,.1f} MB, {layout.get('bits_per_weight')} bits per "
        f"weight, budget {layout.get('budget')}",
        *[f"  {part.title}, layers {part.layers}: {part.format}" for part in layout_parts(units)],
        "",
        *picture(units),
    ]
    return lines, layout


def _table(table: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    entries = [entry for entry in table.get("entries", ()) if not entry.get("failed_logits")]
    failed = len(table.get("entries", ())) - len(entries)
    worst = sorted(entries, key=lambda entry: -_kl(entry))[:8]
    lines = [
        f"{table.get('model')}: {len(table.get('units', ()))} units, formats {', '.join(table.get('formats', ()))}, "
        f"{len(table.get('record_ids', ()))} records",
        f"noise: mean KL {_kl(table.get('noise') or {}):.2e}; {failed} probes failed",
        "",
        "most sensitive:",
        *[f"  {entry['unit']:24} {entry['format']:8} mean KL {_kl(entry):.2e}" for entry in worst],
    ]
    return lines, {key: table.get(key) for key in ("model", "formats")} | {"units": len(table.get("units", ()))}


def _kl(entry: dict[str, Any]) -> float:
    found = (entry.get("figures") or {}).get("kl") or {}
    return float(found.get("value", 0.0))


_READERS: dict[str, Callable[[dict[str, Any]], tuple[list[str], dict[str, Any]]]] = {
    "verify report": _report,
    "layout": _layout,
    "sensitivity table": _table,
}
