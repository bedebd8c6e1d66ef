"""Streaming a vocabulary table by blocks of rows, into int8 or back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from clefquant.errors import InputError
from clefquant.export.int8_rows import Workspace, quantize_rows, row_errors
from clefquant.export.tokens import token_texts
from clefquant.progress import Task
from clefquant.release.headers import TensorInfo
from clefquant.release.shards import Entry, header_bytes

#: Weights per block: its float32 form fits a processor's cache.
_BLOCK_WEIGHTS = 1 << 19
_WORST_SHOWN = 5


class TableReport(NamedTuple):
    """``relative_error``: norm of the error over norm of the table. ``worst``: rows of lowest cosine, with their
    text."""

    table: str
    rows: int
    relative_error: float
    cosine_mean: float
    cosine_worst: float
    zero_rows: int
    worst: list[dict[str, Any]]


def write_int8(path: Path, tables: Mapping[str, TensorInfo], folder: Path, task: Task) -> list[TableReport]:
    """Write ``NAME.scale`` (float32 [V]) and ``NAME.weight`` (int8 [V, H]) of every BF16 table. Counts source bytes.

    Scales come first in the file, so that both start aligned, and are filled in after their rows.
    """
    scales = {f"{name}.scale": Entry("F32", (info.shape[0],), 4 * info.shape[0]) for name, info in tables.items()}
    rows = {f"{name}.weight": Entry("I8", info.shape, info.bytes // 2) for name, info in tables.items()}
    reports = []
    with path.open("wb") as handle, _one_thread():
        head = header_bytes({**scales, **rows})
        handle.write(head)
        scales_at, rows_at = len(head), len(head) + sum(entry.bytes for entry in scales.values())
        for name, info in tables.items():
            task.note(name)
            handle.seek(rows_at)
            report, scale = _write_rows(handle, name, info, folder, task)
            reports.append(report)
            rows_at = handle.tell()
            handle.seek(scales_at)
            scales_at += handle.write(_bytes(scale))
    return reports


def write_bf16(path: Path, tables: Mapping[str, tuple[TensorInfo, TensorInfo]], task: Task) -> None:
    """Write BF16 tables of int8 ones. ``tables``: full tensor name to (rows, scale). Counts int8 bytes."""
    entries = {name: Entry("BF16", rows.shape, 2 * rows.bytes) for name, (rows, _) in tables.items()}
    with path.open("wb") as handle, _one_thread():
        handle.write(header_bytes(entries))
        for name, (rows, scale) in tables.items():
            task.note(name)
            scales = torch.frombuffer(bytearray(scale.read()), dtype=torch.float32)
            for start, values in row_blocks(rows, torch.int8):
                part = scales[start : start + len(values), None]
                handle.write(_bytes((values.float() * part).to(torch.bfloat16)))
                task.advance(values.numel())


def row_blocks(info: TensorInfo, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """(first row, rows [R, H]) in blocks; a block is good until the next."""
    width = info.shape[1]
    block = torch.empty(block_rows(width), width, dtype=dtype)
    view = _bytes(block)
    with info.file.open("rb", buffering=0) as handle:
        handle.seek(info.start)
        for start in range(0, info.shape[0], len(block)):
            count = min(len(block), info.shape[0] - start) * width * dtype.itemsize
            if _fill(handle, view[:count]) < count:
                raise InputError(f"{info.file} ends early; it changed while it was read. Copy it here again.")
            yield start, block[: count // (width * dtype.itemsize)]


def _fill(handle: RawIOBase, view: memoryview) -> int:
    done = 0
    while done < len(view) and (count := handle.readinto(view[done:])):
        done += count
    return done


def block_rows(width: int) -> int:
    """Rows per block."""
    return max(_BLOCK_WEIGHTS // width, 1)


def _write_rows(handle: BinaryIO, name: str, info: TensorInfo, folder: Path, task: Task) -> tuple[TableReport, Tensor]:
    width = info.shape[1]
    space, wide = Workspace.of(block_rows(width), width), torch.empty(block_rows(width), width)
    scale, norm, error, cosine = (torch.empty(info.shape[0]) for _ in range(4))
    for start, block in row_blocks(info, torch.bfloat16):
        x = wide[: len(block)].copy_(block)
        quantized = quantize_rows(x, space)
        here = slice(start, start + len(x))
        scale[here] = quantized.scale
        norm[here], error[here], cosine[here] = row_errors(x, quantized, space)
        if not bool(norm[here].isfinite().all()):
            bad = start + int((~norm[here].isfinite()).nonzero()[0])
            raise InputError(f"row {bad} of {name} holds NaN, infinite or overflowing values; the table is damaged.")
        handle.write(_bytes(quantized.values))
        task.advance(2 * x.numel())
    worst = cosine.argsort()[:_WORST_SHOWN].tolist()
    texts = token_texts(folder, worst)
    report = TableReport(
        table=name,
        rows=info.shape[0],
        relative_error=float(error.double().norm() / norm.double().norm()) if bool(norm.any()) else 0.0,
        cosine_mean=float(cosine.double().mean()),
        cosine_worst=float(cosine.min()),
        zero_rows=int((norm == 0).sum()),
        worst=[{"row": r, "token": t, "cosine": float(cosine[r])} for r, t in zip(worst, texts, strict=True)],
    )
    return report, scale


@contextmanager
def _one_thread() -> Iterator[None]:
    """One core keeps up with a disk on blocks this small, and threads that wait for each other on a busy machine do
    not."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data
