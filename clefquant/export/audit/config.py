"""``config.json``: the class, the nested configurations, the quantization as written, our own object."""

import re
from collections.abc import Iterator
from typing import Any

from clefquant.export.audit.finding import Finding, error, warning
from clefquant.export.audit.folder import AuditFolder
from clefquant.export.audit.quantization import parse_quantization
from clefquant.export.audit.quark import check_quark
from clefquant.export.audit.schemes import QUARK, Quantization
from clefquant.export.audit.shapes import TEXT_NEEDED, layer_types
from clefquant.release.release import ARCHITECTURE

_FILE = "config.json"
_REPAIR = "clefquant audit --repair --out DIR writes it out"
_FROM_SOURCE = "take config.json from the BF16 release and add its quantization_config"


def check_config(folder: AuditFolder) -> Iterator[Finding]:
    """Architecture and nested configurations."""
    if not folder.config:
        return
    found = folder.config.get("architectures")
    if found != [ARCHITECTURE]:
        if isinstance(found, list) and any("ForCausalLM" in str(name) for name in found):
            message = f"architectures is {found}: a class that only generates text; Clef is [{ARCHITECTURE}]"
            yield error("generation-only", message, _FROM_SOURCE, _FILE)
        else:
            message = f"architectures is {found}; a checkpoint of this family has [{ARCHITECTURE}]"
            yield error("architecture", message, _FROM_SOURCE, _FILE)
    if folder.config.get("model_type") != "qwen3_5":
        yield error(
            "architecture", f"model_type is {folder.config.get('model_type')!r}, not 'qwen3_5'", _FROM_SOURCE, _FILE
        )
    for name in ("text_config", "vision_config"):
        if not isinstance(folder.config.get(name), dict):
            yield error(
                "nested-config", f"{name} is missing: the model was saved through another class", _FROM_SOURCE, _FILE
            )
    if folder.text:
        yield from _text_config(folder.text)
    ours = folder.config.get("clefquant")
    if isinstance(ours, dict):
        yield from _own_object(folder, ours)


def _text_config(text: dict[str, Any]) -> Iterator[Finding]:
    if missing := [name for name in TEXT_NEEDED if not isinstance(text.get(name), int)]:
        yield error("nested-config", f"text_config lacks {', '.join(missing)}", _FROM_SOURCE, _FILE)
    elif len(layer_types(text)) != text["num_hidden_layers"]:
        message = f"layer_types has {len(layer_types(text))} entries, num_hidden_layers is {text['num_hidden_layers']}"
        yield error("nested-config", message, _FROM_SOURCE, _FILE)


def _own_object(folder: AuditFolder, ours: dict[str, Any]) -> Iterator[Finding]:
    version = ours.get("schema_version")
    if not isinstance(version, int) or version > 1:
        yield error(
            "newer-schema", f"clefquant.schema_version is {version!r}, this version reads 1", "update clefquant", _FILE
        )
    tables = "int8" if folder.tables is not None else "bf16"
    if ours.get("tables") != tables:
        message = f"clefquant.tables says {ours.get('tables')!r}, the folder has {tables} tables"
        yield error("tables", message, "run `clefquant shrink-tables` (or --restore) on the checkpoint again", _FILE)


def check_quantization(folder: AuditFolder) -> tuple[Quantization | None, list[Finding]]:
    """The parsed configuration, and what is wrong with how it is written."""
    config = folder.quantization
    if config is None:
        return None, []
    try:
        parsed = parse_quantization(config)
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        return None, [
            error("quantization-config", f"quantization_config is not understood: {fault}", _FROM_SOURCE, _FILE)
        ]
    return parsed, list(_quantization(config, parsed))


def _quantization(config: dict[str, Any], parsed: Quantization) -> Iterator[Finding]:
    if parsed.method == QUARK:
        yield from check_quark(config)
        for pattern in parsed.ignore:
            yield from _pattern("exclude", pattern)
    if config.get("kv_cache_scheme"):
        message = "kv_cache_scheme is set, but servers drop the key/value scales of this family and use 1.0"
        yield warning("kv-cache", message, "quantize without a key/value cache scheme", _FILE)
    if config.get("quantization_status") not in (None, "compressed"):
        message = f"quantization_status is {config['quantization_status']!r}, not 'compressed'"
        yield error("quantization-config", message, "save the checkpoint compressed", _FILE)
    for group in parsed.groups:
        if not group.stated:
            mixed = parsed.top_format in (None, "mixed-precision")
            make = error if mixed else warning
            message = f"{group.name} names no format; what is inferred changed between compressed-tensors versions"
            yield make("group-format", message, _REPAIR, _FILE)
        elif parsed.top_format not in (None, "mixed-precision", group.scheme.format):
            message = f"{group.name} is {group.scheme.format}, the whole is declared {parsed.top_format}"
            yield error("group-format", message, _REPAIR, _FILE)
        if group.scheme.tensors(1, 32) is None:
            message = f"{group.name} is in format {group.scheme.format}, whose tensors this audit does not know"
            yield warning("unknown-format", message, "check it with the tool that wrote it", _FILE)
        for target in group.targets:
            yield from _pattern(group.name, target)


def _pattern(group: str, target: str) -> Iterator[Finding]:
    if not target.startswith("re:"):
        return
    try:
        re.compile(target[3:])
    except re.error as fault:
        yield error("pattern", f"{group}: {target!r} is no pattern ({fault})", "write exact module names", _FILE)
        return
    if re.match(r"re:\^?model(\\?\.|\b)", target):
        message = f"{group}: {target!r} begins with `model.`; vLLM renames modules first, so it matches nothing"
        yield error("pattern", message, "write exact module names, or begin with `.*`", _FILE)
