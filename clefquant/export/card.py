"""The model card: rendered from the release's own files, so that it cannot say what they do not.

Figures come from a verify report of this very release and nowhere else; without one the card says that none were
measured. What the files do not tell (the base model's Hub id, the calibration sources) is kept in
``clefquant_card.json``.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clefquant import __version__
from clefquant.export.audit.folder import PROBE_FILE
from clefquant.export.figures import Figures
from clefquant.export.parts import FORMAT_TITLES, format_note, layout_parts
from clefquant.export.plugin import PLUGIN_FOLDER, plugin_version
from clefquant.recipes.formats import BF16, find_format
from clefquant.release.artefact import read_json
from clefquant.release.headers import TensorInfo
from clefquant.release.release import TABLES_FILE

CARD_FILE = "README.md"
CONFIG_FILE = "clefquant.yaml"
FACTS_FILE = "clefquant_card.json"
FACTS_KIND = "card facts"
FACTS_SCHEMA = 1
#: Stands in the snippets until the repository is known.
UNNAMED_REPO = "ORG/NAME"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def card_facts(
    *, model: str, base_model: str | None, calibration: dict[str, Any] | None, source_bytes: int | None
) -> dict[str, Any]:
    """Contents of ``clefquant_card.json``. ``calibration``: the set's header, of which sources and counts are kept."""
    used: dict[str, Any] | None = None
    if calibration is not None:
        used = {key: calibration[key] for key in ("records", "tokens", "seed") if key in calibration}
        used["sources"] = [_source(source) for source in calibration.get("sources", ())]
    return {
        "kind": FACTS_KIND,
        "schema_version": FACTS_SCHEMA,
        "model": model,
        "base_model": base_model,
        "source_bytes": source_bytes,
        "calibration": used,
    }


def _source(source: dict[str, Any]) -> dict[str, Any]:
    origin = source.get("origin")
    place = origin.get("origin") if isinstance(origin, dict) else origin
    name = source["name"] if place in (None, "", source["name"]) else f"{source['name']} ({place})"
    licence = source.get("license") or "unknown"
    return {"name": name, "license": "not stated" if licence == "unknown" else licence, "records": source["records"]}


def render_card(
    folder: Path,
    tensors: dict[str, TensorInfo],
    figures: Figures | None,
    repo: str | None,
    changes: Sequence[str] = (),
) -> str:
    """Text of ``README.md`` for the release in ``folder``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("clefquant.export", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["gb"] = lambda count: f"{count / 1e9:.1f} GB" if count >= 5e7 else f"{count / 1e6:.1f} MB"
    return environment.get_template("card.md.j2").render(**_values(folder, tensors, figures, repo), changes=changes)


def _values(folder: Path, tensors: dict[str, TensorInfo], figures: Figures | None, repo: str | None) -> dict[str, Any]:
    facts = read_json(folder / FACTS_FILE, FACTS_KIND, FACTS_SCHEMA)
    ours = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("clefquant", {})
    layout = folder / "layout.json"
    units = json.loads(layout.read_text(encoding="utf-8"))["units"] if layout.is_file() else {}
    parts = layout_parts(units)
    formats = [name for name in dict.fromkeys(units.values()) if name != BF16.name]
    tables = folder / TABLES_FILE
    scheme = str(ours.get("scheme", "quantized"))
    return {
        "repo": repo or UNNAMED_REPO,
        "title": (repo or f"{facts['model']} {FORMAT_TITLES.get(scheme, scheme)}").rsplit("/", 1)[-1],
        "model": facts["base_model"] or facts["model"],
        "base_model": facts["base_model"],
        "source_bytes": facts["source_bytes"],
        "weight_bytes": sum(info.bytes for info in tensors.values())
        + (tables.stat().st_size if tables.is_file() else 0),
        "parts": parts,
        "notes": [format_note(name) for name in formats],
        "four_bit_inputs": any(find_format(name).four_bit and find_format(name).input for name in formats),
        "tags": formats,
        "int8_tables": tables.is_file(),
        "static_input": any(name.endswith(".input_global_scale") for name in tensors),
        "calibration": facts["calibration"],
        "figures": figures,
        "plugin_version": plugin_version(folder / PLUGIN_FOLDER),
        "minimum_plugin_version": ours.get("minimum_plugin_version"),
        "has_probe": (folder / PROBE_FILE).is_file(),
        "has_config": (folder / CONFIG_FILE).is_file(),
        "clefquant_version": __version__,
    }
