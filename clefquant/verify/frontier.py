"""The frontier a sweep found, read from its result folder."""

from pathlib import Path
from typing import Any

from clefquant.errors import InputError
from clefquant.release.artefact import read_json

FILE, KIND, SCHEMA_VERSION = "frontier.json", "frontier", 1


def read_frontier(folder: Path) -> dict[str, Any]:
    """``{"measure": name, "points": [{"bytes", "loss"}, …]}`` from smallest to largest."""
    value = read_json(folder / FILE, KIND, SCHEMA_VERSION)
    points = value.get("points")
    if not isinstance(points, list) or not all(isinstance(point, dict) and {"bytes", "loss"} <= set(point) for point in points):
        raise InputError(f"{folder / FILE} has no points with bytes and loss; run `clefquant sensitivity` again.")
    chosen = [{"bytes": int(point["bytes"]), "loss": float(point["loss"])} for point in points]
    return {"measure": str(value.get("measure", "kl")), "points": sorted(chosen, key=lambda point: point["bytes"])}
