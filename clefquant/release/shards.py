"""Writing backbone shards by copying byte ranges: no tensor is decoded, so the bits cannot change.

A shard is eight bytes of little-endian header length, the JSON header (padded with spaces to a multiple of eight),
then the tensors' bytes without gaps. Wider elements come first, so that every tensor starts aligned to its element.
"""

import errno
import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from clefquant.errors import InputError, PrerequisiteError
from clefquant.progress import Task
from clefquant.release.artefact import sha256_file, write_json
from clefquant.release.headers import TensorInfo
from clefquant.release.release import INDEX_FILE

BLOCK_BYTES = 64 << 20
_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class Described(Protocol):
    """What a header says of a tensor."""

    @property
    def dtype(self) -> str:
        """Safetensors' name of the element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""

    @property
    def bytes(self) -> int:
        """Size."""


class Entry(NamedTuple):
    """A tensor that is yet to be written: safetensors dtype, shape, size in bytes."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


D = TypeVar("D", bound=Described)


def parse_size(text: str) -> int:
    """Bytes of a size such as ``5GB`` (10^9), ``500MB`` or ``2GiB`` (2^30)."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise InputError(f"{text!r} is not a size; write a number and a unit, for example 5GB, 500MB or 2GiB.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def header_bytes(entries: Mapping[str, Described]) -> bytes:
    """Length field and header of a shard that holds ``entries`` in their order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, entry in entries.items():
        header[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.bytes],
        }
        offset += entry.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def plan_shards(tensors: Mapping[str, D], max_bytes: int) -> list[dict[str, D]]:
    """Tensors in their order, cut into shards of at most ``max_bytes`` (a single larger tensor has a shard of its
    own)."""
    shards: list[dict[str, D]] = []
    filled = max_bytes + 1
    for name, info in tensors.items():
        if filled + info.bytes > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = info
        filled += info.bytes
    return [dict(sorted(shard.items(), key=lambda item: -_ITEM_BYTES.get(item[1].dtype, 1))) for shard in shards]


def shard_names(count: int) -> list[str]:
    """Published names of ``count`` shards."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def write_shards(folder: Path, tensors: Mapping[str, TensorInfo], max_bytes: int, task: Task) -> dict[str, str]:
    """Copy ``tensors`` into shards of ``folder`` and write their index; returns sha256 by file name. Counts bytes."""
    shards = plan_shards(tensors, max_bytes)
    digests, weight_map = {}, {}
    for name, shard in zip(shard_names(len(shards)), shards, strict=True):
        task.note(name)
        digests[name] = copy_shard(folder / name, shard, task)
        weight_map.update(dict.fromkeys(shard, name))
    write_index(folder, weight_map, sum(info.bytes for info in tensors.values()))
    return digests


def write_index(folder: Path, weight_map: Mapping[str, str], total_bytes: int) -> None:
    """``model.safetensors.index.json``: always written, so that no server globs the joint head as backbone."""
    value = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / INDEX_FILE, value)


def copy_shard(path: Path, tensors: Mapping[str, TensorInfo], task: Task) -> str:
    """Write one shard from byte ranges of others; returns its sha256. A source that ends early is an InputError."""
    with path.open("wb", buffering=0) as out:
        out.write(header_bytes(tensors))
        for info in tensors.values():
            copy_tensor(info, out.fileno(), task.advance)
    return sha256_file(path)


def copy_tensor(
    info: TensorInfo, target: int, advance: Callable[[float], None] = lambda _: None, *, to: int | None = None
) -> None:
    """Copy one tensor's bytes to offset ``to`` of descriptor ``target`` (None: to where it stands, moving it).

    A source that ends early is an InputError.
    """
    with info.file.open("rb", buffering=0) as source:
        at = info.start
        while at < info.end:
            place = None if to is None else to + at - info.start
            count = _copy(source.fileno(), target, at, min(BLOCK_BYTES, info.end - at), place)
            if not count:
                raise InputError(f"{info.file} ends {info.end - at} bytes early; it changed while it was read.")
            at += count
            advance(count)


def _copy(source: int, target: int, offset: int, count: int, to: int | None) -> int:
    """Copy up to ``count`` bytes inside the kernel, which costs a quarter of reading and writing them; else by hand."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, count, offset_src=offset, offset_dst=to)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
    data = os.pread(source, count, offset)
    return os.write(target, data) if to is None else os.pwrite(target, data, to)


def check_space(beside: Path, needed_bytes: int) -> None:
    """PrerequisiteError before the first slow step when the disk cannot hold the result."""
    free = free_bytes(beside)
    if free < needed_bytes:
        raise PrerequisiteError(
            f"{beside} needs {_shown(needed_bytes)}, {_shown(free)} are free there. "
            f"Make {_shown(needed_bytes)} free or choose another disk for --out."
        )


def _shown(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"


def free_bytes(beside: Path) -> int:
    """What is free on the disk of a file or folder that need not exist yet."""
    folder = next(parent for parent in (beside, *beside.absolute().parents) if parent.is_dir())
    return shutil.disk_usage(folder).free


def copy_side_files(files: Sequence[Path], target: Path) -> None:
    """Copy files byte for byte into ``target``, readable by everyone."""
    for file in files:
        if file.is_symlink() and not file.exists():
            raise InputError(f"{file} is a broken link; download the folder again.")
        shutil.copyfile(file, target / file.name)
        os.chmod(target / file.name, 0o644)
