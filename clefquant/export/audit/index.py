"""The index against the shards, and the shards against their own headers."""

import re
from collections.abc import Iterator

from clefquant.export.audit.finding import Finding, error, info, warning
from clefquant.export.audit.folder import AuditFolder
from clefquant.release.release import INDEX_FILE

_REPAIR = "clefquant audit --repair --out DIR writes a new index"
#: transformers reads this file, when it is there, instead of the index and the files the index names.
SINGLE_FILE = "model.safetensors"
_NUMBERED = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")


def check_index(folder: AuditFolder) -> Iterator[Finding]:
    """Missing index, files and tensors on one side alone, sizes, leftovers of another save."""
    if folder.index is None:
        yield from _without_index(folder)
        return
    for name in sorted(set(folder.index.values())):
        if "/" in name or "\\" in name or name in (".", ".."):
            yield error("path-escape", f"the index names {name!r}, which leaves the folder", _REPAIR, INDEX_FILE)
        elif name.startswith("joint_head"):
            yield error(
                "head-in-reach",
                f"the index lists {name}: the head would be read as backbone weights",
                _REPAIR,
                INDEX_FILE,
            )
        elif name not in folder.shards and name not in folder.unread:
            yield error(
                "missing-file", f"the index names {name}, which is not there", "download the release again", name
            )
    if SINGLE_FILE in folder.shards and set(folder.index.values()) - {SINGLE_FILE}:
        message = f"{SINGLE_FILE} lies beside other shards: transformers reads it alone and makes the rest up"
        yield error("single-file", message, f"{_REPAIR} and other names", SINGLE_FILE)
    yield from _disagreements(folder)
    for name in folder.shards:
        if name not in folder.index.values():
            yield _stray(folder, name)
    total = sum(entry.bytes for entry in folder.tensors.values())
    if folder.index_bytes is not None and folder.index_bytes != total and not folder.unread:
        message = f"total_size is {folder.index_bytes}, the tensors have {total} bytes"
        yield warning("index-size", message, _REPAIR, INDEX_FILE)


def check_layout(folder: AuditFolder) -> Iterator[Finding]:
    """Sizes of tensors against dtype and shape, gaps and overlaps within a shard."""
    for name, tensors in {**folder.shards, **({folder.head_file: folder.head} if folder.head_file else {})}.items():
        end = None
        for tensor, entry in sorted(tensors.items(), key=lambda item: item[1].start):
            if not entry.fits:
                message = f"{tensor} has {entry.bytes} bytes, not those of {entry.dtype} {list(entry.shape)}"
                yield error("damaged-header", message, "write the file again", name, tensor)
            if end is not None and entry.start != end:
                yield error(
                    "damaged-header", f"{tensor} overlaps or leaves a gap", "write the file again", name, tensor
                )
            end = entry.end


def _without_index(folder: AuditFolder) -> Iterator[Finding]:
    in_reach = folder.head_file is not None and "/" not in folder.head_file
    if in_reach:
        message = f"there is no index, so a server reads {folder.head_file} as backbone weights"
        yield error("head-in-reach", message, _REPAIR, INDEX_FILE)
    elif len(folder.shards) > 1:
        yield error("missing-index", f"{len(folder.shards)} shards but no index", _REPAIR, INDEX_FILE)
    else:
        yield info("missing-index", "one shard and no index; the head lies in a folder of its own", _REPAIR, INDEX_FILE)
    seen: dict[str, str] = {}
    for name, tensors in folder.shards.items():
        for tensor in tensors:
            if tensor in seen:
                message = f"{tensor} is in {seen[tensor]} and in {name}"
                yield error("leftover", message, "remove the file of the other save", name, tensor)
                break
            seen[tensor] = name


def _disagreements(folder: AuditFolder) -> Iterator[Finding]:
    assert folder.index is not None
    for tensor, name in folder.index.items():
        if name in folder.shards and tensor not in folder.shards[name]:
            yield error("index", f"the index places {tensor} in {name}, which does not hold it", _REPAIR, name, tensor)
    named = set(folder.index.values())
    for name, tensors in folder.shards.items():
        for tensor in tensors if name in named else ():
            if folder.index.get(tensor) != name:
                where = folder.index.get(tensor)
                there = f"the index places it in {where}" if where else "the index does not list it"
                yield error("index", f"{name} holds {tensor}, {there}", _REPAIR, name, tensor)


def _stray(folder: AuditFolder, name: str) -> Finding:
    assert folder.index is not None
    numbered = _NUMBERED.fullmatch(name)
    remedy = "remove it, or clefquant audit --repair --out DIR"
    if numbered or name == SINGLE_FILE:
        held = [tensor for tensor in folder.shards[name] if tensor in folder.index]
        what = (
            f"it holds {len(held)} tensors that the index takes from elsewhere"
            if held
            else "the index does not name it"
        )
        return error("leftover", f"{name} belongs to another save: {what}", remedy, name)
    return error(
        "stray-weights",
        f"{name} lies where a server looks for backbone weights, the index does not name it",
        remedy,
        name,
    )
