"""A repaired copy of a checkpoint: what can be mended from the files alone, never in place."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from clefquant.errors import CheckFailed, InputError
from clefquant.export.audit import audit
from clefquant.export.audit.files import check_sums
from clefquant.export.audit.folder import AuditFolder, read_folder
from clefquant.export.audit.index import SINGLE_FILE
from clefquant.export.card import CARD_FILE, FACTS_FILE, render_card
from clefquant.export.repair_files import new_sums, side_files, written_out
from clefquant.export.repair_scales import repair_scales
from clefquant.export.sums import SUMS_FILE
from clefquant.progress import SILENT, Progress
from clefquant.release.artefact import check_new_folder, new_folder, sha256_file, write_text
from clefquant.release.headers import TensorInfo, read_backbone
from clefquant.release.release import TABLES_FILE
from clefquant.release.shards import check_space, shard_names, write_index


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
    shards = sorted({info.file for info in tensors.values()})
    names = _names(shards, actions)
    with new_folder(out) as work:
        with progress.task("writing shards", len(shards), "files") as task:
            for file in shards:
                task.note(file.name)
                shutil.copyfile(file, work / names[file.name])
                _patch(work / names[file.name], {n: i for n, i in tensors.items() if i.file == file}, scales.replaced)
                task.advance()
        weight_map = {name: names[info.file.name] for name, info in tensors.items()}
        write_index(work, weight_map, sum(info.bytes for info in tensors.values()))
        if folder.index != weight_map:
            actions.append("the index was written anew" if folder.index is not None else "an index was written")
        dropped = {file.name for file in path.glob("*.safetensors")} - set(names)
        dropped -= {folder.head_file} if folder.head_file else set()
        side_files(folder, work, set(names), dropped, actions)
        written_out(folder, work, actions)
        if (work / FACTS_FILE).is_file():
            write_text(work / CARD_FILE, render_card(work, read_backbone(work), None, None))
        untouched = {name: digest for name, digest in known.items() if not _changed(name, tensors, scales.replaced)}
        untouched = {names.get(name, name): digest for name, digest in untouched.items()}
        new_sums(folder, work, {n: digest for n, digest in untouched.items() if (work / n).is_file()}, actions)
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


def _names(shards: list[Path], actions: list[str]) -> dict[str, str]:
    """What each shard is called in the copy."""
    names = [file.name for file in shards]
    if SINGLE_FILE not in names or len(names) == 1:
        return dict(zip(names, names, strict=True))
    actions.append(f"the shards are numbered: transformers would have read {SINGLE_FILE} alone")
    return dict(zip(names, shard_names(len(names)), strict=True))


def _patch(file: Path, tensors: dict[str, TensorInfo], replaced: dict[str, bytes]) -> None:
    with file.open("r+b") as handle:
        for name, info in tensors.items():
            if name in replaced:
                assert len(replaced[name]) == info.bytes
                handle.seek(info.start)
                handle.write(replaced[name])


def _changed(name: str, tensors: dict[str, TensorInfo], replaced: dict[str, bytes]) -> bool:
    return any(tensors[tensor].file.name == name for tensor in replaced)
