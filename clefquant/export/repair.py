"""A repaired copy of a checkpoint: what can be mended from the files alone, never in place."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from clefquant.errors import CheckFailed, InputError
from clefquant.export.audit import audit
from clefquant.export.audit.files import check_sums
from clefquant.export.audit.folder import HEAD_FOLDER, MARKER, TABLES_FILE, AuditFolder, read_folder
from clefquant.export.audit.schemes import COMPRESSED, QUARK, inferred_format
from clefquant.export.card import CARD_FILE, FACTS_FILE, render_card
from clefquant.export.marker import add_marker
from clefquant.export.repair_scales import repair_scales
from clefquant.export.sums import SUMS_FILE, release_files, write_sums
from clefquant.export.verified import REPORT_FILE, VERIFIED_FILE
from clefquant.progress import SILENT, Progress
from clefquant.release.artefact import check_new_folder, new_folder, sha256_file, write_json, write_text
from clefquant.release.headers import TensorInfo, read_backbone
from clefquant.release.release import HEAD_CONFIG_FILE, INDEX_FILE
from clefquant.release.shards import check_space, write_index


class Repaired(NamedTuple):
    """``actions``: what was changed; ``left``: errors that remain; ``added_error``: relative, per rescaled module."""

    path: Path
    actions: list[str]
    left: list[str]
    added_error: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"actions": self.actions, "left": self.left, "added_error": self.added_error}


def repair(path: Path, out: Path, *, progress: Progress = SILENT) -> Repaired:
    """Write a repaired copy of ``path`` to the new folder ``out``.

    Unshared NVFP4 global scales are made equal, the index is written anew, config groups get their format, a missing
    marker is set, files of another save are left out, checksums are written. CheckFailed when weights are damaged: no
    repair can bring back bytes.
    """
    check_new_folder(out)
    if out.resolve().is_relative_to(path.resolve()):
        raise InputError(f"{out} lies inside {path}; a repair is written to a folder of its own.")
    folder = read_folder(path)
    known = _check_whole(folder)
    tensors = _backbone(folder)
    scales = repair_scales(tensors)
    actions = list(scales.actions)
    check_space(out, sum(info.bytes for info in tensors.values()))
    shards = {info.file for info in tensors.values()}
    with new_folder(out) as work:
        with progress.task("writing shards", len(shards), "files") as task:
            for file in sorted(shards):
                task.note(file.name)
                shutil.copyfile(file, work / file.name)
                _patch(work / file.name, {n: i for n, i in tensors.items() if i.file == file}, scales.replaced)
                task.advance()
        write_index(work, {n: i.file.name for n, i in tensors.items()}, sum(i.bytes for i in tensors.values()))
        if folder.index != {name: info.file.name for name, info in tensors.items()}:
            actions.append("the index was written anew" if folder.index is not None else "an index was written")
        dropped = {file.name for file in path.glob("*.safetensors")} - {file.name for file in shards}
        dropped -= {folder.head_file} if folder.head_file else set()
        _side_files(folder, work, dropped, actions)
        _config(folder, work, actions)
        if (work / FACTS_FILE).is_file():
            write_text(work / CARD_FILE, render_card(work, read_backbone(work), None, None))
        untouched = {name: digest for name, digest in known.items() if not _changed(name, tensors, scales.replaced)}
        write_sums(work, {name: digest for name, digest in untouched.items() if (work / name).is_file()})
        left = [f"{found.check}: {found.message}" for found in audit(work) if found.severity == "error"]
    return Repaired(out, actions, left, scales.added_error)


def _check_whole(folder: AuditFolder) -> dict[str, str]:
    """sha256 of the files with weights; CheckFailed when one cannot be read or is not what its checksum says."""
    if folder.unread:
        raise CheckFailed(f"{', '.join(sorted(folder.unread))} cannot be read; download the file again, then repair.")
    names = [*folder.shards, *([folder.head_file] if folder.head_file else [])]
    names += [TABLES_FILE] if folder.tables is not None else []
    known = {name: sha256_file(folder.path / name) for name in names}
    changed = [f.file for f in check_sums(folder, known) if f.check == "checksum-changed" and f.file in known]
    if changed:
        raise CheckFailed(f"{', '.join(map(str, changed))} differ from {SUMS_FILE}; download them again, then repair.")
    return known


def _backbone(folder: AuditFolder) -> dict[str, TensorInfo]:
    """The tensors of the copy: of the shards the index names (as far as they are there), or of all shards."""
    named = set(folder.index.values()) & set(folder.shards) if folder.index is not None else set(folder.shards)
    tensors: dict[str, TensorInfo] = {}
    for name in sorted(named):
        for tensor, info in folder.shards[name].items():
            place = folder.index.get(tensor) if folder.index is not None else None
            if tensor in tensors and place != name:
                if place is None:
                    raise CheckFailed(
                        f"{tensor} is in {tensors[tensor].file.name} and in {name}; remove one of the saves."
                    )
                continue
            tensors[tensor] = info
    if not tensors:
        raise CheckFailed(f"{folder.path} holds no backbone weights that could be repaired.")
    return tensors


def _patch(file: Path, tensors: dict[str, TensorInfo], replaced: dict[str, bytes]) -> None:
    with file.open("r+b") as handle:
        for name, info in tensors.items():
            if name in replaced:
                assert len(replaced[name]) == info.bytes
                handle.seek(info.start)
                handle.write(replaced[name])


def _changed(name: str, tensors: dict[str, TensorInfo], replaced: dict[str, bytes]) -> bool:
    return any(tensors[tensor].file.name == name for tensor in replaced)


def _side_files(folder: AuditFolder, work: Path, dropped: set[str], actions: list[str]) -> None:
    stale = dropped | {
        file.name
        for pattern in ("*.partial", ".*.partial", "*.incomplete", "pytorch_model*", "consolidated*")
        for file in folder.path.glob(pattern)
    }
    actions += [f"{name} of another save was left out" for name in sorted(stale)]
    outdated = {INDEX_FILE, VERIFIED_FILE, REPORT_FILE}
    for name in release_files(folder.path):
        if name not in stale | outdated and not (work / name).exists():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder.path / name, work / name)
    if folder.tables is not None and folder.head_config is not None and MARKER not in folder.head_config:
        name = HEAD_CONFIG_FILE if (work / HEAD_CONFIG_FILE).is_file() else f"{HEAD_FOLDER}/{HEAD_CONFIG_FILE}"
        write_text(work / name, add_marker((work / name).read_text(encoding="utf-8")))
        actions.append(f"{name} got the marker {MARKER}")


def _config(folder: AuditFolder, work: Path, actions: list[str]) -> None:
    """Write formats out and drop what vLLM cannot parse; the file keeps its bytes when there is nothing to change."""
    config: dict[str, Any] = json.loads(json.dumps(folder.config))
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return
    if quantization.get("quant_method") == QUARK and quantization.get("algo_config") is not None:
        quantization["algo_config"] = None
        actions.append("config.json: algo_config set to null")
    groups = quantization.get("config_groups")
    if quantization.get("quant_method") == COMPRESSED and isinstance(groups, dict):
        top = quantization.get("format")
        for name, group in groups.items():
            if isinstance(group, dict) and not isinstance(group.get("format"), str) and group.get("weights"):
                group["format"] = top if top not in (None, "mixed-precision") else inferred_format(group["weights"])
                actions.append(f"config.json: {name} got the format {group['format']}")
        formats = {group.get("format") for group in groups.values() if isinstance(group, dict)}
        wanted = formats.pop() if len(formats) == 1 else "mixed-precision"
        if top != wanted and (top is None or len(groups) > 1 or top == "mixed-precision"):
            quantization["format"] = wanted
            actions.append(f"config.json: format is now {wanted}")
    if config != folder.config:
        write_json(work / "config.json", config)
