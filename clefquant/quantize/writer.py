"""Writing safetensors shards whose tensors arrive one by one, in any order.

Names, dtypes and shapes are known before the first weight is read, so headers are written first and every tensor
goes straight to its place: a checkpoint needs the memory of one unit. An index that lists the backbone alone is
always written, even for one shard, because servers otherwise take the joint head's file for backbone weights.
"""

import math
import os
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import torch

from clefquant.quantize.dtypes import NAMES
from clefquant.recipes.formats import DTYPE_BYTES
from clefquant.release.headers import TensorInfo
from clefquant.release.shards import Entry, copy_tensor, header_bytes, plan_shards, shard_names, write_index

DEFAULT_SHARD_BYTES = 5_000_000_000
#: Tensors that may wait to be written: enough to overlap, few enough for the memory of one unit.
_WAITING = 8


def planned(dtype: str, shape: tuple[int, ...]) -> Entry:
    """A tensor of a dtype that we write ourselves."""
    return Entry(dtype, shape, DTYPE_BYTES[dtype] * math.prod(shape))


def lay_out(folder: Path, plan: Mapping[str, Entry], max_shard_bytes: int = DEFAULT_SHARD_BYTES) -> None:
    """Write every shard's header and reserve its space, and the index."""
    weight_map: dict[str, str] = {}
    shards = plan_shards(plan, max_shard_bytes)
    for file_name, shard in zip(shard_names(len(shards)), shards, strict=True):
        with (folder / file_name).open("wb") as handle:
            header = header_bytes(shard)
            handle.write(header)
            handle.truncate(len(header) + sum(entry.bytes for entry in shard.values()))
        weight_map.update(dict.fromkeys(shard, file_name))
    write_index(folder, weight_map, sum(entry.bytes for entry in plan.values()))


class ShardWriter:
    """Writes the planned tensors into ``folder``, which :func:`lay_out` has prepared by the same plan; a context
    manager that checks on leaving that none is missing.

    Threads do the writing, so that it costs no time beside quantizing. ``written``: names that somebody else writes, or
    has written, into the same files.
    """

    def __init__(
        self,
        folder: Path,
        plan: Mapping[str, Entry],
        max_shard_bytes: int = DEFAULT_SHARD_BYTES,
        written: Iterable[str] = (),
    ) -> None:
        self._plan = dict(plan)
        self._folder = folder
        self._shards = plan_shards(self._plan, max_shard_bytes)
        self._place: dict[str, tuple[BinaryIO, int]] = {}
        self._files: list[BinaryIO] = []
        self._missing = self._plan.keys() - set(written)
        # copies have a thread of their own, so that no quantized tensor waits in memory behind gigabytes of tables
        self._copying = ThreadPoolExecutor(1, thread_name_prefix="copy")
        self._writing = ThreadPoolExecutor(2, thread_name_prefix="write")
        self._copies: deque[Future[None]] = deque()
        self._writes: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        """Open the files."""
        for file_name, shard in zip(shard_names(len(self._shards)), self._shards, strict=True):
            handle = (self._folder / file_name).open("r+b", buffering=0)
            self._files.append(handle)
            place = len(header_bytes(shard))
            for name, entry in shard.items():
                self._place[name] = (handle, place)
                place += entry.bytes
        return self

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor, soon; dtype and shape must be the planned ones."""
        entry = self._plan[name]
        assert (NAMES[tensor.dtype], tuple(tensor.shape)) == (entry.dtype, entry.shape), (name, tensor.shape)
        while len(self._writes) >= _WAITING:
            self._writes.popleft().result()
        self._writes.append(self._writing.submit(self._write, name, tensor))
        self._missing.discard(name)

    def copy(self, name: str, source: TensorInfo) -> None:
        """Copy one tensor's bytes unchanged, soon."""
        self._copies.append(self._copying.submit(self._copy, name, source))
        self._missing.discard(name)

    def flush(self) -> None:
        """Wait until everything is in the files. Raises what the writing raised."""
        for waiting in (self._writes, self._copies):
            while waiting:
                waiting.popleft().result()

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        data = tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        handle, place = self._place[name]
        while len(data):
            count = os.pwrite(handle.fileno(), data, place)
            data, place = data[count:], place + count

    def _copy(self, name: str, source: TensorInfo) -> None:
        handle, place = self._place[name]
        copy_tensor(source, handle.fileno(), to=place)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            for threads in (self._writing, self._copying):
                threads.shutdown(cancel_futures=True)
            for handle in self._files:
                handle.close()
        assert kind is not None or not self._missing, f"never written: {sorted(self._missing)[:5]}"
