"""What a new version changes over the one that is published: formats, size, figures."""

import json
from pathlib import Path
from typing import Any

from clefquant.errors import ClefquantError
from clefquant.export.card import CARD_FILE
from clefquant.export.figures import report_figures
from clefquant.export.hub import Hub, Remote, same
from clefquant.export.parts import FORMAT_TITLES
from clefquant.export.verified import read_sums
from clefquant.verify.stored_report import REPORT_FILE

#: Title of the card's section.
TITLE = "Changes from the version before"
_LAYOUT = "layout.json"
_SHOWN = 8


def changes_section(stage: Path, hub: Hub, there: dict[str, Remote]) -> list[str]:
    """Lines for the card; those of the published card when the published weights are these."""
    weights, sums = [name for name in there if name.endswith(".safetensors")], read_sums(stage)
    if weights and all(
        (stage / name).is_file() and same(stage / name, there[name], sums.get(name)) for name in weights
    ):
        return _published_lines(hub) if CARD_FILE in there else []
    old = {name: _read(hub, name) for name in (_LAYOUT, REPORT_FILE) if name in there}
    new = {
        name: json.loads((stage / name).read_text("utf-8"))
        for name in (_LAYOUT, REPORT_FILE)
        if (stage / name).is_file()
    }
    lines = _layout(old.get(_LAYOUT), new.get(_LAYOUT)) + _figures(old.get(REPORT_FILE), new.get(REPORT_FILE))
    before = sum(there[name].size for name in weights)
    after = sum(file.stat().st_size for file in stage.rglob("*.safetensors"))
    return [*lines, f"Weight files: {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB now."]


def _published_lines(hub: Hub) -> list[str]:
    text = hub.read(CARD_FILE).decode("utf-8", errors="replace")
    _, found, rest = text.partition(f"## {TITLE}\n")
    section = rest.partition("\n## ")[0] if found else ""
    return [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")]


def _read(hub: Hub, name: str) -> dict[str, Any] | None:
    """A JSON object of the published version; None when it cannot be read: a card must not stop at an old one."""
    try:
        value = json.loads(hub.read(name))
    except (ClefquantError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _layout(old: dict[str, Any] | None, new: dict[str, Any] | None) -> list[str]:
    before, after = (value.get("units", {}) if value else {} for value in (old, new))
    moved = [(name, before[name], fmt) for name, fmt in after.items() if name in before and before[name] != fmt]
    if not moved:
        return ["The format of every unit is as before."] if before and after else []
    shown = [f"{n} {FORMAT_TITLES.get(a, a)} → {FORMAT_TITLES.get(b, b)}" for n, a, b in moved[:_SHOWN]]
    more = f" and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
    return [f"{len(moved)} of {len(after)} units have another format: {', '.join(shown)}{more}."]


def _figures(old: dict[str, Any] | None, new: dict[str, Any] | None) -> list[str]:
    if not old or not new:
        return []
    try:
        before, after = report_figures(old), report_figures(new)
    except (ClefquantError, KeyError, TypeError):
        return []
    pairs = dict(zip(before.columns, before.rows[-1].values, strict=True))
    found = [
        f"{column} {pairs[column]} → {value}"
        for column, value in zip(after.columns, after.rows[-1].values, strict=True)
        if column in pairs and column != "Questions"
    ]
    return [f"All questions: {', '.join(found)}."] if found else []
