"""int8 tables of the 27B shape against copying the same file: time, peak memory, largest error.

    python benchmarks/tables.py [--rows 248320] [--width 5120] [--folder DIR] [--check]

Writes two random BF16 tables (5.1 GB at the default shape) into a folder of its own, copies them, shrinks them, and
prints one JSON line. Bars: at least 0.5 of the copy's throughput, at most 1.5 GiB of peak memory.
"""

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from clefquant.export.table_rows import write_int8
from clefquant.export.tables import TABLES
from clefquant.progress import SILENT
from clefquant.release.headers import read_header
from clefquant.release.shards import Entry, header_bytes

BLOCK_ROWS = 1024


def write_tables(path: Path, rows: int, width: int) -> None:
    """Random BF16 tables; every 1,000th row is zero."""
    random = np.random.default_rng(0)
    block = (random.standard_normal((BLOCK_ROWS, width), np.float32) * 0.02).view(np.uint32) >> 16
    block[::1000] = 0
    data = block.astype("<u2").tobytes()
    entries = {name: Entry("BF16", (rows, width), 2 * rows * width) for name in TABLES.values()}
    with path.open("wb") as handle:
        handle.write(header_bytes(entries))
        for _ in entries:
            for start in range(0, rows, BLOCK_ROWS):
                handle.write(data[: 2 * width * min(BLOCK_ROWS, rows - start)])


def timed(work, written: Path) -> float:
    """Seconds until what the work wrote is on disk."""
    start = time.perf_counter()
    work()
    with written.open("rb") as handle:
        os.fsync(handle.fileno())
    return time.perf_counter() - start


def largest_error(source: Path, shrunk: Path) -> float:
    """max of |x - row * scale| / scale over both tables; 0.5 is allowed."""
    before, after, worst = read_header(source), read_header(shrunk), 0.0
    for short, name in TABLES.items():
        x_info, q_info = before[name], after[f"{short}.weight"]
        rows, width = x_info.shape
        x = np.memmap(x_info.file, "<u2", "r", x_info.start, (rows, width))
        q = np.memmap(q_info.file, np.int8, "r", q_info.start, (rows, width))
        scale = np.frombuffer(after[f"{short}.scale"].read(), "<f4")
        for start in range(0, rows, BLOCK_ROWS):
            here = slice(start, start + BLOCK_ROWS)
            exact = (x[here].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            read = q[here].astype(np.float64) * scale[here, None].astype(np.float64)
            worst = max(worst, float((np.abs(exact - read) / scale[here, None]).max()))
            zero = ~exact.any(1)
            assert not q[here][zero].any()
    return worst


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=248_320)
    parser.add_argument("--width", type=int, default=5_120)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--check", action="store_true", help="also look at every weight's error (slow)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        source = folder / "tables.safetensors"
        write_tables(source, arguments.rows, arguments.width)
        os.sync()
        tables = {short: read_header(source)[full] for short, full in TABLES.items()}
        with SILENT.task("", None) as task:
            shrunk = folder / "int8.safetensors"
            shrink_s = timed(lambda: write_int8(shrunk, tables, folder, task), shrunk)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        copy_s = timed(lambda: shutil.copyfile(source, folder / "copy.safetensors"), folder / "copy.safetensors")
        size = source.stat().st_size
        result = {
            "bytes": size,
            "copy_s": round(copy_s, 2),
            "shrink_s": round(shrink_s, 2),
            "throughput_of_copy": round(copy_s / shrink_s, 3),
            "peak_gib": round(peak / 2**30, 3),
        }
        if arguments.check:
            result["largest_error_in_scales"] = largest_error(source, folder / "int8.safetensors")
        print(json.dumps(result))


if __name__ == "__main__":
    main()
