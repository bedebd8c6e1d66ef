"""The joint head, the vocabulary tables and the marker that keeps them from being read by what does not know them."""

import json
import re
from collections.abc import Iterator
from typing import Any

from clefquant.export.audit.finding import Finding, error, info, warning
from clefquant.export.audit.folder import PROBE_FILE, AuditFolder
from clefquant.export.audit.shapes import EMBEDDING, LM_HEAD
from clefquant.export.plugin import PLUGIN_FOLDER, plugin_version
from clefquant.release.release import HEAD_CONFIG_FILE, MARKER, TABLES_FILE

#: Keyword arguments of the head; every loader passes them on, and an unknown one raises TypeError.
HEAD_KEYS = {"hidden_size", "width", "routing_layers", "layers", "heads", "feedforward"}
_SOURCE = "copy it from the BF16 release"
_TABLES_AGAIN = "run `clefquant shrink-tables` again on the checkpoint with BF16 tables"


def check_head(folder: AuditFolder) -> Iterator[Finding]:
    """Head configuration, tables, marker, plugin version, probe."""
    if not folder.is_clef:
        yield info("no-head", "there is no joint head: this is a Qwen3.5 backbone alone, audited as such")
        return
    marker: Any = None
    if folder.head_config is not None:
        marker = folder.head_config.get(MARKER)
        yield from _head_config(folder, folder.head_config)
    if folder.tables is not None:
        yield from _tables(folder)
        if marker is None:
            message = (
                f"{TABLES_FILE} is there, {MARKER} is not: readers that do not know it answer wrongly, without an error"
            )
            yield error(
                "marker", message, f'add "{MARKER}": the oldest plugin version that reads the tables', HEAD_CONFIG_FILE
            )
    elif marker is not None:
        message = f"{HEAD_CONFIG_FILE} has {MARKER}, but there are no int8 tables: every other reader stops for nothing"
        yield warning("marker", message, "remove the key", HEAD_CONFIG_FILE)
    yield from _versions(folder, marker)
    yield from _probe(folder)


def _head_config(folder: AuditFolder, config: dict[str, Any]) -> Iterator[Finding]:
    if unknown := sorted(set(config) - HEAD_KEYS - {MARKER}):
        message = f"{HEAD_CONFIG_FILE} has {', '.join(unknown)}: loaders pass every key on and stop with a TypeError"
        yield error("head-config", message, _SOURCE, HEAD_CONFIG_FILE)
    hidden = folder.text.get("hidden_size")
    if config.get("hidden_size", hidden) != hidden:
        message = f"the head is for hidden size {config.get('hidden_size')}, the backbone has {hidden}"
        yield error("head-config", message, "take the head of the same model", HEAD_CONFIG_FILE)


def _tables(folder: AuditFolder) -> Iterator[Finding]:
    assert folder.tables is not None
    vocabulary, hidden = folder.text.get("vocab_size"), folder.text.get("hidden_size")
    for name, full in (("embed_tokens", EMBEDDING), ("lm_head", LM_HEAD)):
        wanted = {f"{name}.weight": ("I8", (vocabulary, hidden)), f"{name}.scale": ("F32", (vocabulary,))}
        for tensor, (dtype, shape) in wanted.items():
            entry = folder.tables.get(tensor)
            if entry is None:
                if TABLES_FILE not in folder.unread:
                    yield error("missing-tables", f"{TABLES_FILE} lacks {tensor}", _TABLES_AGAIN, TABLES_FILE, tensor)
            elif entry.dtype != dtype or entry.shape != shape:
                message = f"{tensor} is {entry.dtype} {list(entry.shape)}, {dtype} {list(shape)} is needed"
                yield error("wrong-shape", message, _TABLES_AGAIN, TABLES_FILE, tensor)
        if full in folder.tensors:
            file = folder.tensors[full].file.name
            message = f"{full} is stored twice, in {file} and as int8: readers differ in which they use"
            yield error("tables", message, _TABLES_AGAIN, file, full)


def _versions(folder: AuditFolder, marker: Any) -> Iterator[Finding]:
    needed = {f"{MARKER} in {HEAD_CONFIG_FILE}": marker}
    ours = folder.config.get("clefquant")
    if isinstance(ours, dict):
        needed["clefquant.minimum_plugin_version in config.json"] = ours.get("minimum_plugin_version")
    shipped = _shipped_version(folder)
    for place, version in needed.items():
        if version is None:
            continue
        if not _numbers(version):
            yield error(
                "plugin-version",
                f"{place} is {version!r}, not a version such as 0.1.0",
                "export again",
                place.split()[-1],
            )
        elif shipped is not None and _numbers(version) > _numbers(shipped):
            message = f"{place} asks for clef-vllm {version}, the folder carries {shipped}"
            yield error(
                "plugin-version", message, "export again with the newer plugin", f"{PLUGIN_FOLDER}/pyproject.toml"
            )


def _shipped_version(folder: AuditFolder) -> str | None:
    try:
        return plugin_version(folder.path / PLUGIN_FOLDER)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _numbers(version: Any) -> tuple[int, ...]:
    text = str(version)
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+(\.\d+)*", text) else ()


def _probe(folder: AuditFolder) -> Iterator[Finding]:
    file = folder.path / PROBE_FILE
    if not file.is_file():
        return
    try:
        probe = json.loads(file.read_text(encoding="utf-8"))
        logits = probe["logits"] if isinstance(probe["logits"], list) else [probe["logits"]]
        sound = (
            probe["schema_version"] == 1 and len(probe["records"]) == len(logits) > 0 and float(probe["tolerance"]) > 0
        )
    except (OSError, ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        message = "the probe needs schema_version 1, records, as many logits, and a tolerance above 0"
        yield error("probe", message, "export again", file.name)
