"""What a sweep found, read from its result folder for the page: the frontier, measured candidates, every unit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clefquant.errors import InputError
from clefquant.release.artefact import read_json

FILE, KIND, SCHEMA_VERSION = "frontier.json", "frontier", 1
TABLE_FILE, TABLE_KIND, TABLE_SCHEMA_VERSION = "sensitivity.json", "sensitivity table", 1


def read_frontier(folder: Path) -> dict[str, Any]:
    """The page's view of a sweep.

    ``points``: [bytes, predicted KL] from smallest to largest, bytes of the weights, head included. ``measured``: the
    candidates' bytes, KL and its standard error. ``sweep``: per unit and format its KL, error, bytes saved and rank
    (None without ``sensitivity.json`` beside it). InputError when the folder has no frontier or a damaged one.
    """
    value = read_json(folder / FILE, KIND, SCHEMA_VERSION)
    table = folder / TABLE_FILE
    try:
        return {
            "points": sorted([int(size), float(loss)] for size, loss in value["points"]),
            "measured": [_candidate(one) for one in value.get("candidates", ()) if one["figures"]],
            "sweep": _sweep(read_json(table, TABLE_KIND, TABLE_SCHEMA_VERSION)) if table.is_file() else None,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder / FILE} has no points of bytes and loss, or {TABLE_FILE} beside it is damaged; run `clefquant "
            "sensitivity` again."
        ) from error


def _candidate(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"bytes": one["total_bytes"], **_figure(one["figures"]["kl"])}


def _sweep(table: Mapping[str, Any]) -> dict[str, Any]:
    units = {
        unit["name"]: {"name": unit["name"], "layer": unit["layer"], "kind": unit["kind"], "formats": {}}
        for unit in table["units"]
    }
    sizes = {unit["name"]: unit["bytes"] for unit in table["units"]}
    for entry in table["entries"]:
        size, name = sizes[entry["unit"]], entry["format"]
        units[entry["unit"]]["formats"][name] = {
            **_figure(entry["figures"].get("kl")),
            "saved": size["bf16"] - size[name],
            "rank": entry.get("rank"),
        }
    noise = table["noise"]["figures"].get("kl")
    return {"formats": table["formats"], "noise": noise["value"] if noise else None, "units": list(units.values())}


def _figure(figure: Mapping[str, Any] | None) -> dict[str, Any]:
    """KL and its standard error; None for a failed probe."""
    return {"kl": figure["value"], "error": figure["error"]} if figure else {"kl": None, "error": None}
