"""The bytes of the weights, read once: their sha256, and numbers that no quantizer should have written."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clefquant.export.audit.decode import E2M1, floats
from clefquant.export.audit.finding import Finding, error, warning
from clefquant.export.audit.folder import AuditFolder
from clefquant.progress import Task
from clefquant.release.headers import TensorInfo
from clefquant.release.release import TABLES_FILE

_BLOCK_BYTES = 8 << 20
_AGAIN = "quantize again; a dead module needs calibration records that reach it"
#: Last part of a scale's name; ``scale`` is that of an int8 table. The head's own logit scales may be anything.
_SCALES = {
    "weight_scale", "weight_global_scale", "input_global_scale", "input_scale", "weight_scale_inv", "weight_scale_2",
    "scale",
}  # fmt: skip


@dataclass
class _Counts:
    """Bad numbers in one tensor. ``not_finite``: NaN or infinity (for E4M3 the bytes 7F and FF, for E8M0 255)."""

    not_finite: int = 0
    zero: int = 0
    negative: int = 0


def check_contents(folder: AuditFolder, task: Task) -> tuple[dict[str, str], list[Finding]]:
    """sha256 by relative path of every weight file that could be read, and findings about values. Counts bytes."""
    files = dict(folder.shards)
    if folder.head_file:
        files[folder.head_file] = folder.head
    if folder.tables is not None:
        files[TABLES_FILE] = folder.tables
    digests, findings = {}, []
    for name, tensors in files.items():
        if name not in folder.unread and tensors:
            task.note(name)
            digests[name], counts = _read(folder.path / name, tensors, task)
            for tensor, count in counts.items():
                findings += list(_judge(tensor, tensors, count, name))
    return digests, findings


def _read(path: Path, tensors: Mapping[str, TensorInfo], task: Task) -> tuple[str, dict[str, _Counts]]:
    digest, counts = hashlib.sha256(), {}
    with path.open("rb") as handle:
        for name, info in sorted(tensors.items(), key=lambda item: item[1].start):
            if handle.tell() > info.start:  # overlapping ranges: the header is at fault and named elsewhere
                continue
            digest.update(handle.read(info.start - handle.tell()))
            counts[name] = _Counts()
            left = info.bytes
            while left > 0 and (block := handle.read(min(left, _BLOCK_BYTES))):
                digest.update(block)
                _count(name, info.dtype, block, counts[name])
                left -= len(block)
                task.advance(len(block))
        while rest := handle.read(_BLOCK_BYTES):
            digest.update(rest)
    return digest.hexdigest(), counts


def _count(name: str, dtype: str, block: bytes, into: _Counts) -> None:
    scale = _is_scale(name)
    width = {"BF16": 2, "F16": 2, "F32": 4}.get(dtype, 1)
    block = block[: len(block) // width * width]  # a rest that is no value: the header is at fault and named elsewhere
    if dtype == "BF16":
        words = np.frombuffer(block, "<u2")
        into.not_finite += int(np.count_nonzero((words & 0x7F80) == 0x7F80))
    elif dtype == "F8_E4M3":
        values = np.frombuffer(block, np.uint8)
        into.not_finite += int(np.count_nonzero((values & 0x7F) == 0x7F))
    elif dtype == "U8" and scale:
        into.not_finite += int(np.count_nonzero(np.frombuffer(block, np.uint8) == 255))
        return
    elif dtype in ("F32", "F16"):
        kind = "<f4" if dtype == "F32" else "<f2"
        into.not_finite += int(np.count_nonzero(~np.isfinite(np.frombuffer(block, kind))))
    if scale and dtype in ("BF16", "F8_E4M3", "F32", "F16"):
        numbers = floats(block, dtype)
        into.zero += int(np.count_nonzero(numbers == 0))
        into.negative += int(np.count_nonzero(numbers < 0))


def _judge(name: str, tensors: Mapping[str, TensorInfo], count: _Counts, file: str) -> Iterator[Finding]:
    info, scale = tensors[name], _is_scale(name)
    if count.not_finite:
        what = {
            "F8_E4M3": "E4M3 bytes that mean NaN (7F or FF)",
            "U8": "E8M0 scale bytes of 255, which mean NaN",
        }.get(info.dtype, "values that are NaN or infinite")
        check = {"F8_E4M3": "e4m3-nan", "U8": "e8m0-nan"}.get(info.dtype, "not-finite")
        yield error(check, f"{name} holds {count.not_finite} {what}", _AGAIN, file, name)
    if count.negative:
        yield error("negative-scale", f"{name} holds {count.negative} negative scales", _AGAIN, file, name)
    if scale and count.zero:
        if name.endswith("_global_scale"):
            yield error("zero-scale", f"{name} is zero: a server divides by it", _AGAIN, file, name)
        elif lost := _lost_weights(name, tensors):
            message = f"{name} holds {count.zero} zero scales, over {lost} weights that are not zero and vanish"
            yield error("zero-scale", message, _AGAIN, file, name)
        else:
            message = f"{name} holds {count.zero} zero scales over weights that are zero"
            yield warning("zero-scale", message, "harmless where a reader multiplies, not where it divides", file, name)


def _is_scale(name: str) -> bool:
    return name.rpartition(".")[2] in _SCALES


def _lost_weights(name: str, tensors: Mapping[str, TensorInfo]) -> int:
    """Weights that are not zero under a zero scale; all of them when the two tensors do not fit together."""
    module = name.rpartition(".")[0]
    weight = tensors.get(f"{module}.weight_packed") or tensors.get(f"{module}.weight")
    scale = tensors[name]
    if weight is None or weight is scale or not (weight.fits and scale.fits) or len(scale.shape) not in (1, 2):
        return math.prod(scale.shape)
    rows, width = scale.shape[0], scale.shape[1] if len(scale.shape) == 2 else 1
    zero = floats(scale.read(), scale.dtype).reshape(rows, width) == 0
    data = np.frombuffer(weight.read(), np.uint8)
    if weight.dtype in ("U8", "F4"):
        nonzero = (E2M1[data & 15] != 0).astype(np.int64) + (E2M1[data >> 4] != 0)
    else:
        nonzero = (data.reshape(math.prod(weight.shape), -1).any(1)).astype(np.int64)
    if weight.shape[:1] != (rows,) or nonzero.size % (rows * width):
        return int(np.count_nonzero(nonzero))
    return int((nonzero.reshape(rows, width, -1).sum(2) * zero).sum())
