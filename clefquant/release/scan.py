"""One pass over a release's weight files: their sha256, and which tensors hold a NaN or an infinity."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clefquant.release.headers import TensorInfo

_BLOCK_BYTES = 1 << 20
#: Floating dtypes a source can have: how its elements are read, all bits but the sign, and the bits of infinity.
_FLOATS = {
    "BF16": ("<u2", 0x7FFF, 0x7F80),
    "F16": ("<u2", 0x7FFF, 0x7C00),
    "F32": ("<u4", 0x7FFF_FFFF, 0x7F80_0000),
}


class Scan(NamedTuple):
    """``sha256``: by shard name. ``nonfinite``: tensors that hold a NaN or an infinity, by name."""

    sha256: dict[str, str]
    nonfinite: tuple[str, ...]


def scan(tensors: Mapping[str, TensorInfo]) -> Scan:
    """Read every shard of ``tensors`` once, several at a time."""
    shards: dict[Path, dict[str, TensorInfo]] = {}
    for name, info in tensors.items():
        shards.setdefault(info.file, {})[name] = info
    with ThreadPoolExecutor(min(len(shards), os.cpu_count() or 1), thread_name_prefix="scan") as pool:
        found = dict(zip(shards, pool.map(_scan_shard, shards, shards.values()), strict=True))
    return Scan(
        {file.name: digest for file, (digest, _) in found.items()},
        tuple(name for _, names in found.values() for name in names),
    )


def _scan_shard(file: Path, tensors: Mapping[str, TensorInfo]) -> tuple[str, list[str]]:
    digest, broken = hashlib.sha256(), []
    with file.open("rb") as handle:
        buffer = memoryview(bytearray(_BLOCK_BYTES))
        for name, start, end, dtype in _pieces(tensors, file.stat().st_size):
            finite = True
            handle.seek(start)
            for at in range(start, end, _BLOCK_BYTES):
                block = buffer[: min(_BLOCK_BYTES, end - at)]
                count = handle.readinto(block)
                digest.update(block[:count])
                finite = finite and (dtype not in _FLOATS or _finite(block, dtype))
            if not finite:
                broken.append(name)
    return digest.hexdigest(), broken


def _pieces(tensors: Mapping[str, TensorInfo], size: int) -> Iterable[tuple[str, int, int, str]]:
    """The whole file in order: the tensors, and what lies before and between them."""
    at = 0
    for name, info in sorted(tensors.items(), key=lambda item: item[1].start):
        yield "", at, info.start, ""
        yield name, info.start, info.end, info.dtype
        at = info.end
    yield "", at, size, ""


def _finite(block: memoryview, dtype: str) -> bool:
    element, magnitude, infinity = _FLOATS[dtype]
    return bool((np.frombuffer(block, element) & magnitude).max() < infinity)
