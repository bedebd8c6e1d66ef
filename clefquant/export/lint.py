"""Checks of a card before anything is sent: what a Hub page would get wrong, or promise wrongly."""

import json
import re
from pathlib import Path
from typing import Any

from clefquant.export.card import CARD_FILE, FACTS_FILE, HUB_ID, UNNAMED_REPO
from clefquant.release.yaml_text import parse_yaml

#: Published BF16 releases by (hidden size, layers): a card must not name the other one.
_KNOWN = {(5120, 64): "Cloudflare/clef", (4096, 32): "Cloudflare/clef-flash"}
#: Models that are on no Hub.
_LOCAL = ("nano",)
_GENERATES = ("text-generation", "text2text-generation", "image-text-to-text", "conversational")
_SNIPPET = re.compile(r"""(?:hf download |snapshot_download\(["']|from_pretrained\(["'])([\w.-]+/[\w.-]+)""")


def lint_card(folder: Path, text: str, repo: str) -> list[str]:
    """Faults of the card ``text`` of the release in ``folder`` when it is published as ``repo``."""
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    if not found:
        return [f"{CARD_FILE} has no YAML header"]
    try:
        head = parse_yaml(found[1])
    except ValueError as error:
        return [f"the YAML header of {CARD_FILE} does not parse: {error}"]
    if not isinstance(head, dict):
        return [f"the YAML header of {CARD_FILE} is no mapping"]
    faults = [f"{key} is empty in the YAML header" for key, value in head.items() if _has_null(value)]
    if head.get("license") != "apache-2.0":
        faults.append(f"license is {head.get('license')!r}, not apache-2.0")
    faults += _base_model(folder, head)
    if not head.get("tags"):
        faults.append("there are no tags")
    if head.get("pipeline_tag") in _GENERATES or head.get("library_name") == "transformers":
        faults.append("pipeline_tag or library_name promises text generation, which a decision model does not do")
    faults += [f"a snippet names {name}, not {repo}" for name in sorted(set(_SNIPPET.findall(text)) - {repo})]
    if UNNAMED_REPO in text:
        faults.append(f"{UNNAMED_REPO} stands where the repository belongs")
    return faults


def _has_null(value: Any) -> bool:
    return value in (None, "", []) or (isinstance(value, list) and any(item is None for item in value))


def _base_model(folder: Path, head: dict[str, Any]) -> list[str]:
    facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8")) if (folder / FACTS_FILE).is_file() else {}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    base, model = head.get("base_model"), str(facts.get("model", ""))
    if base is None:
        if model in _LOCAL:
            return []
        return ["base_model is missing: export with --base-model and the Hub id of the BF16 Clef release"]
    faults = []
    if not isinstance(base, str) or not HUB_ID.fullmatch(base):
        return [f"base_model is {base!r}, not one Hub id of the form ORG/NAME"]
    if base.lower().startswith("qwen/"):
        faults.append(f"base_model is {base}, the backbone's own base; name the Clef release that was quantized")
    text = config.get("text_config", {})
    known = _KNOWN.get((text.get("hidden_size"), text.get("num_hidden_layers")))
    if base in _KNOWN.values() and known != base:
        faults.append(f"base_model is {base}, but these weights have {known or 'another'} shape")
    if "/" in model and HUB_ID.fullmatch(model) and model != base:
        faults.append(f"base_model is {base}, but the checkpoint was made from {model}")
    if head.get("base_model_relation") != "quantized":
        faults.append(f"base_model_relation is {head.get('base_model_relation')!r}, not 'quantized'")
    return faults
