"""The frontier a sweep found, read from its result folder."""

from pathlib import Path
from typing import Any

from clefquant.errors import InputError
from clefquant.release.artefact import read_json

FILE, KIND, SCHEMA_VERSION = "frontier.json", "frontier", 1


def read_frontier(folder: Path) -> dict[str, Any]:
    """``{"points": [[bytes, predicted KL], …]}`` from smallest to largest; bytes of the weights, head included.

    InputError when the folder has no such file or its points are none.
    """
    points = read_json(folder / FILE, KIND, SCHEMA_VERSION).get("points")
    try:
        chosen = sorted([int(size), float(loss)] for size, loss in points or [])
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{folder / FILE} has no points of bytes and loss; run `clefquant sensitivity` again."
        ) from error
    return {"points": chosen}
