"""Writing safetensors shards whose tensors arrive one by one, in any order.

Names, dtypes and shapes are known before the first weight is read, so headers are written first and every tensor
goes straight to its place: a checkpoint needs the memory of one unit. An index that lists the backbone alone is
always written, even for one shard, because servers otherwise take the joint head's file for backbone weights.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import torch

from clefquant.recipes.formats import DTYPE_BYTES
from clefquant.release.artefact import write_json
from clefquant.release.headers import TensorInfo
from clefquant.release.release import INDEX_FILE

DEFAULT_SHARD_BYTES = 5_000_000_000
_COPY_BLOCK_BYTES = 16 << 20
TORCH_DTYPES = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8", torch.int8: "I8", torch.int32: "I32", torch.int64: "I64",
}  # fmt: skip


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to be written: safetensors dtype and shape."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...]) -> "PlannedTensor":
        """A planned tensor of a dtype we write ourselves."""
        size = DTYPE_BYTES[dtype]
        for dimension in shape:
            size *= dimension
        return cls(dtype, shape, size)


class ShardWriter:
    """Writes the planned tensors into ``folder``; a context manager that checks on leaving that none is missing."""

    def __init__(
        self, folder: Path, plan: Mapping[str, PlannedTensor], max_shard_bytes: int = DEFAULT_SHARD_BYTES
    ) -> None:
        self._plan = dict(plan)
        self._folder = folder
        self._shards = _split(self._plan, max_shard_bytes)
        self._place: dict[str, tuple[BinaryIO, int]] = {}
        self._files: list[BinaryIO] = []
        self._missing = set(self._plan)

    def __enter__(self) -> Self:
        """Write every header and reserve the space."""
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._shards, start=1):
            count = len(self._shards)
            file_name = "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
            handle = (self._folder / file_name).open("wb")
            self._files.append(handle)
            offset = 0
            header: dict[str, object] = {"__metadata__": {"format": "pt"}}
            for name in names:
                planned = self._plan[name]
                header[name] = {
                    "dtype": planned.dtype,
                    "shape": list(planned.shape),
                    "data_offsets": [offset, offset + planned.bytes],
                }
                offset += planned.bytes
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)  # tensors start on a multiple of eight
            handle.write(struct.pack("<Q", len(text)) + text)
            base = 8 + len(text)
            handle.truncate(base + offset)
            for name in names:
                self._place[name] = (handle, base)
                base += self._plan[name].bytes
                weight_map[name] = file_name
        total = sum(planned.bytes for planned in self._plan.values())
        write_json(self._folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
        return self

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor; dtype and shape must be the planned ones."""
        planned = self._plan[name]
        assert (TORCH_DTYPES[tensor.dtype], tuple(tensor.shape)) == (planned.dtype, planned.shape), (
            name,
            tensor.shape,
        )
        handle = self._seek(name)
        handle.write(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().data)

    def copy(self, name: str, source: TensorInfo) -> None:
        """Copy one tensor's bytes unchanged."""
        handle = self._seek(name)
        with source.file.open("rb") as reader:
            reader.seek(source.start)
            left = source.bytes
            while left:
                block = reader.read(min(left, _COPY_BLOCK_BYTES))
                handle.write(block)
                left -= len(block)

    def _seek(self, name: str) -> BinaryIO:
        handle, offset = self._place[name]
        handle.seek(offset)
        self._missing.discard(name)
        return handle

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._files:
            handle.close()
        assert kind is not None or not self._missing, f"never written: {sorted(self._missing)[:5]}"


def _split(plan: Mapping[str, PlannedTensor], max_shard_bytes: int) -> list[list[str]]:
    """Names per shard, in order; a tensor larger than the limit gets a shard of its own."""
    shards: list[list[str]] = []
    size = 0
    for name, planned in plan.items():
        if not shards or size + planned.bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += planned.bytes
    return shards
