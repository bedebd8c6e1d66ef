"""Embedding and lm_head as int8 rows in ``clef_head/tables_int8.safetensors``, and back.

The two are lookups in a decision model, so their rows are read one at a time and a scale per row loses next to nothing.
Tables are streamed by blocks of rows: memory does not grow with the vocabulary.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clefquant.errors import InputError
from clefquant.export.audit.shapes import EMBEDDING, LM_HEAD, tied
from clefquant.export.card import CARD_FILE, FACTS_FILE, render_card
from clefquant.export.marker import MINIMUM_PLUGIN, add_marker, remove_marker
from clefquant.export.replace import Change, changed_copy, settle
from clefquant.export.sums import SUMS_FILE, release_files, write_sums
from clefquant.export.table_rows import TableReport, write_bf16, write_int8
from clefquant.progress import SILENT, Progress, Task
from clefquant.release.artefact import write_json, write_text
from clefquant.release.headers import TensorInfo, read_header
from clefquant.release.release import HEAD_CONFIG_FILE, HEAD_FOLDER, INDEX_FILE, TABLES_FILE, Release, open_release
from clefquant.release.shards import check_space, copy_shard, shard_names, write_index
from clefquant.verify.stored_report import REPORT_FILE

TABLES = {"embed_tokens": EMBEDDING, "lm_head": LM_HEAD}


class Shrunk(NamedTuple):
    """``saved_bytes``: size of the BF16 tables less that of the int8 ones."""

    path: Path
    saved_bytes: int
    tables: list[TableReport]


def shrink_tables(folder: Path, out: Path | None = None, *, progress: Progress = SILENT) -> Shrunk:
    """Write ``folder`` with int8 tables to ``out``, or in its own place; whole or not at all.

    Sets the marker that stops readers which do not know the tables, and ``clefquant.tables`` in ``config.json``.
    """
    settle(folder)
    release = open_release(folder)
    _check_place(release, out)
    if (folder / TABLES_FILE).exists():
        raise InputError(f"{folder} has int8 tables already; --restore goes back to BF16.")
    if tied(release.config):
        raise InputError(f"{folder} ties lm_head to the embedding; int8 tables are for models with both.")
    if missing := [name for name in TABLES.values() if name not in release.tensors]:
        raise InputError(f"{folder} has no {' and no '.join(missing)}; nothing to shrink.")
    sources = {short: release.tensors[name] for short, name in TABLES.items()}
    for short, info in sources.items():
        if info.dtype != "BF16" or len(info.shape) != 2:
            raise InputError(f"{short} is {info.dtype} {list(info.shape)}; a BF16 table [rows, hidden] is needed.")
    kept = {name: info for name, info in release.tensors.items() if name not in TABLES.values()}
    total = sum(info.bytes for info in sources.values())
    rewritten = _rewritten_bytes(release, kept)
    check_space(out or folder, release.backbone_bytes if out else total + rewritten)
    with changed_copy(release.path, out) as change, progress.task("tables", total + rewritten, "bytes") as task:
        (change.work / HEAD_FOLDER).mkdir()
        reports = write_int8(change.work / TABLES_FILE, sources, folder, task)
        names = {file.name: file.name for file in release.shards}
        _complete(release, change, kept, {}, names, "int8", task)
        saved = total - (change.work / TABLES_FILE).stat().st_size
    return Shrunk(out or folder, saved, reports)


def restore_tables(folder: Path, out: Path | None = None, *, progress: Progress = SILENT) -> Path:
    """Undo :func:`shrink_tables`: BF16 tables of the int8 values (the rounding stays), marker removed.

    The tables become the last shard and all shards are numbered anew: a file called ``model.safetensors`` would be
    the only one that transformers reads.
    """
    settle(folder)
    release = open_release(folder)
    _check_place(release, out)
    if not (folder / TABLES_FILE).is_file():
        raise InputError(f"{folder} has no {TABLES_FILE}; there is nothing to restore.")
    held = read_header(folder / TABLES_FILE)
    if missing := [part for short in TABLES for part in (f"{short}.weight", f"{short}.scale") if part not in held]:
        raise InputError(f"{folder / TABLES_FILE} lacks {', '.join(missing)}; take the tables from the source release.")
    tables = {name: (held[f"{short}.weight"], held[f"{short}.scale"]) for short, name in TABLES.items()}
    total = sum(rows.bytes for rows, _ in tables.values())
    check_space(out or folder, 2 * total + (release.backbone_bytes if out else 0))
    with changed_copy(release.path, out) as change, progress.task("tables", total, "bytes") as task:
        *numbered, last = shard_names(len(release.shards) + 1)
        names = {file.name: name for file, name in zip(release.shards, numbered, strict=True)}
        write_bf16(change.work / last, tables, task)
        _complete(release, change, release.tensors, read_header(change.work / last), names, "bf16", task)
    return out or folder


def _check_place(release: Release, out: Path | None) -> None:
    if out is None and (release.path / SUMS_FILE).is_file() and (release.path / FACTS_FILE).is_file():
        raise InputError(
            f"{release.path} is an exported release; give --out, or change the checkpoint and export again."
        )


def _rewritten_bytes(release: Release, kept: Mapping[str, TensorInfo]) -> int:
    changed = {info.file for name, info in release.tensors.items() if name not in kept}
    return sum(info.bytes for info in kept.values() if info.file in changed)


def _complete(
    release: Release,
    change: Change,
    kept: Mapping[str, TensorInfo],
    extra: Mapping[str, TensorInfo],
    names: Mapping[str, str],
    tables: str,
    task: Task,
) -> None:
    """Backbone, index, configurations and everything else of the copy. ``extra``: tensors of shards already written;
    ``names``: of the other shards, to what they are called in the copy."""
    changed = {info.file for name, info in release.tensors.items() if name not in kept}
    digests = {}
    for file in release.shards:
        tensors = {name: info for name, info in kept.items() if info.file == file}
        if file not in changed:
            change.keep(file.name, names[file.name])
        elif tensors:
            digests[names[file.name]] = copy_shard(change.work / names[file.name], tensors, task)
    backbone = {**kept, **extra}
    weight_map = {name: names[info.file.name] for name, info in kept.items()}
    weight_map |= {name: info.file.name for name, info in extra.items()}
    write_index(change.work, weight_map, sum(info.bytes for info in backbone.values()))
    config = json.loads((release.path / "config.json").read_text(encoding="utf-8"))
    if isinstance(config.get("clefquant"), dict):
        config["clefquant"]["tables"] = tables
        if tables == "int8":
            config["clefquant"]["minimum_plugin_version"] = MINIMUM_PLUGIN
    write_json(change.work / "config.json", config)
    at_root = (release.path / HEAD_CONFIG_FILE).is_file()
    head = HEAD_CONFIG_FILE if at_root else f"{HEAD_FOLDER}/{HEAD_CONFIG_FILE}"
    edit = add_marker if tables == "int8" else remove_marker
    text = edit((release.path / head).read_text(encoding="utf-8"))
    write_text(change.work / head, text)
    done = {"config.json", head, INDEX_FILE, TABLES_FILE, *(file.name for file in release.shards)}
    if (release.path / FACTS_FILE).is_file():  # an exported release: its card described the other tables
        done |= {CARD_FILE, REPORT_FILE}
    for name in release_files(release.path):
        if name not in done:
            change.keep(name)
    if (release.path / FACTS_FILE).is_file():
        write_text(change.work / CARD_FILE, render_card(change.work, backbone, None, None))
    if (release.path / SUMS_FILE).is_file():
        write_sums(change.work, digests)
