"""Reading safetensors headers: which tensor is where, of which dtype and shape, without reading any weight.

A safetensors file is eight bytes of little-endian header length, the JSON header, then the tensors' bytes one after
another; ``data_offsets`` count from the end of the header.
"""

import builtins
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefquant.errors import InputError

_HEAD_PREFIX = "joint_head"
_LFS_FIRST_LINE = b"version https://git-lfs"
_MAX_HEADER_BYTES = 100 << 20
_BLOCK_BYTES = 16 << 20
#: Bits of an element by safetensors' name of its type.
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor's bytes are. ``dtype`` in safetensors' spelling (``BF16``, ``F8_E4M3``, ``U8``, …)."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def bytes(self) -> int:
        """Size of the tensor in the file."""
        return self.end - self.start

    @property
    def fits(self) -> bool:
        """Whether its bytes are as many as its type and shape take; False for a type that safetensors does not know."""
        return self.dtype in _BITS and 8 * self.bytes == _BITS[self.dtype] * math.prod(self.shape)

    def blocks(self, block_bytes: int = _BLOCK_BYTES) -> Iterator[builtins.bytes]:
        """The tensor's bytes piece by piece, so that a table of gigabytes needs no memory of its size."""
        with self.file.open("rb") as handle:
            handle.seek(self.start)
            for done in range(0, self.bytes, block_bytes):
                yield handle.read(min(block_bytes, self.bytes - done))

    def read(self) -> builtins.bytes:
        """The tensor's bytes, as stored."""
        with self.file.open("rb") as handle:
            handle.seek(self.start)
            return handle.read(self.bytes)

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the tensor's bytes, as stored. InputError when the file ends early."""
        with self.file.open("rb", buffering=0) as handle:
            handle.seek(self.start)
            done = 0
            while done < self.bytes:
                count = handle.readinto(buffer[done:])
                if not count:
                    raise InputError(f"{self.file} ends {self.bytes - done} bytes early; it changed while it was read.")
                done += count


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Tensors of one safetensors file with absolute byte offsets. InputError when the file is cut, a pointer or no
    such file. Whether a tensor's bytes fit its type and shape is for the caller to see.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            prefix = handle.read(8)
            if prefix + handle.read(len(_LFS_FIRST_LINE) - 8) == _LFS_FIRST_LINE:
                raise InputError(f"{file} is a Git LFS pointer, not weights; fetch it with `git lfs pull`.")
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise InputError(f"{file} is not a whole safetensors file ({size} bytes); download or write it again.")
            handle.seek(8)
            header = json.loads(handle.read(length), object_pairs_hook=_without_repeats)
        if not isinstance(header, dict):
            raise ValueError("it is no JSON object")
        header.pop("__metadata__", None)
        found = {name: _tensor(file, name, entry, 8 + length) for name, entry in header.items()}
    except FileNotFoundError:
        raise InputError(f"{file} does not exist, but the index names it; the release is incomplete.") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} has a damaged header: {error}") from error
    end = max((info.end for info in found.values()), default=8 + length)
    if end != size:
        raise InputError(f"{file} has {size} bytes, its header describes {end}; it was cut or overwritten.")
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; which of two equal keys counts depends on the reader, so there may be none."""
    value: dict[str, Any] = {}
    for name, item in pairs:
        if name in value:
            raise ValueError(f"{name!r} is there twice")
        value[name] = item
    return value


def _tensor(file: Path, name: str, entry: Any, base: int) -> TensorInfo:
    """One entry of a header whose tensors begin at byte ``base``; ValueError when it is none."""
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key, 0) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{name!r} is not described by dtype, shape and two data_offsets")
    if offsets[0] > offsets[1]:
        raise ValueError(f"{name!r} ends before it begins: data_offsets {offsets}")
    return TensorInfo(file, dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def read_weight_map(index: Any) -> dict[str, str]:
    """Tensor name to file name of a parsed ``model.safetensors.index.json``; ValueError when it holds none."""
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ValueError("it is an object from tensor name to file name")
    return found


def read_backbone(folder: Path) -> dict[str, TensorInfo]:
    """Every backbone tensor of a release: of the index's shards, or of each weight file but the head when there is
    none.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            weight_map = read_weight_map(json.loads(index.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{index} has no readable weight_map: {error}") from error
        names = sorted(set(weight_map.values()))
    else:
        weight_map = {}
        names = sorted(file.name for file in folder.glob("*.safetensors") if not file.name.startswith(_HEAD_PREFIX))
    if not names:
        raise InputError(f"{folder} holds no *.safetensors weights.")
    found: dict[str, TensorInfo] = {}
    for name in names:
        if name in ("", "..") or Path(name).name != name:
            raise InputError(f"{index} names {name!r}, which leaves the release folder.")
        found.update(read_header(folder / name))
    if missing := sorted(set(weight_map) - set(found)):
        raise InputError(f"{index} lists {len(missing)} tensors that no shard holds, first {missing[0]}.")
    for name, info in found.items():
        if not info.fits:
            raise InputError(
                f"{info.file} gives {name} {info.bytes} bytes, but {info.dtype} {list(info.shape)} takes others; the "
                "header is damaged, or safetensors knows no such type. Download or write the file again."
            )
    return {name: info for name, info in found.items() if not weight_map or name in weight_map}
