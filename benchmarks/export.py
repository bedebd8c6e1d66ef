"""Export of a 9B-shaped folder against copying and hashing the same bytes.

    python benchmarks/export.py CHECKPOINT [--gb 11] [--folder DIR]

Adds one large shard to a small CHECKPOINT (11 GB: Clef-Flash in FP8), exports it, then copies and hashes the same
bytes file by file. Needs twice their size on the disk. Prints one JSON line. Bar: at most 1.5 times the time of copying
plus hashing.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from clefquant.export.release_folder import export_release
from clefquant.release.artefact import sha256_file
from clefquant.release.headers import read_backbone
from clefquant.release.shards import Entry, header_bytes, write_index

BLOCK_BYTES = 64 << 20


def enlarge(checkpoint: Path, out: Path, size: int) -> None:
    """A copy of the checkpoint with a second shard of ``size`` random bytes."""
    shutil.copytree(checkpoint, out)
    tensors = {name: info.file.name for name, info in read_backbone(out).items()}
    with (out / "model-ballast.safetensors").open("wb") as handle:
        count = size // BLOCK_BYTES
        handle.write(header_bytes({f"mtp.ballast.{n}": Entry("U8", (BLOCK_BYTES,), BLOCK_BYTES) for n in range(count)}))
        block = np.random.default_rng(0).bytes(BLOCK_BYTES)
        for _ in range(count):
            handle.write(block)
    tensors |= {f"mtp.ballast.{n}": "model-ballast.safetensors" for n in range(count)}
    write_index(out, tensors, size)


def flush(folder: Path) -> None:
    """Wait until the folder is on disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--gb", type=float, default=11)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        work = Path(name)
        enlarge(arguments.checkpoint, work / "checkpoint", int(arguments.gb * 1e9))
        flush(work)
        start = time.perf_counter()
        done = export_release(work / "checkpoint", work / "release")
        flush(work / "release")
        export_s = time.perf_counter() - start
        shutil.rmtree(work / "release")
        start = time.perf_counter()
        shutil.copytree(work / "checkpoint", work / "copy")
        flush(work / "copy")
        for file in (work / "copy").rglob("*"):
            if file.is_file():
                sha256_file(file)
        copy_s = time.perf_counter() - start
        result = {"bytes": done.bytes, "export_s": round(export_s, 2), "copy_and_hash_s": round(copy_s, 2)}
        print(json.dumps({**result, "times_of_copy_and_hash": round(export_s / copy_s, 3)}))


if __name__ == "__main__":
    main()
