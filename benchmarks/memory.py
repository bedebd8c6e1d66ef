"""Peak memory and time of quantizing on a processor, beside what `--dry-run` foretells; and the 27B shape foretold.

python benchmarks/flash_release.py /tmp/flash
clefquant calibrate --model /tmp/flash --mixture FILE --out /tmp/set        # a handful of short records
python benchmarks/memory.py /tmp/flash /tmp/set --scheme nvfp4
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from flash_release import SHAPES, configuration

from clefquant.calibration.stored import open_set
from clefquant.quantize.preflight import memory_needed
from clefquant.release.artefact import write_json
from clefquant.release.code import release_code
from clefquant.release.headers import TensorInfo
from clefquant.release.load import empty_backbone
from clefquant.release.release import Release, open_release

GIB = 2**30


def described(shape: str, work: Path) -> Release:
    """A release of this shape without weights: names and sizes are enough to foretell."""
    nano = open_release("nano")
    config = configuration(nano.config, SHAPES[shape])
    for file in nano.side_files:
        shutil.copyfile(file, work / file.name)
    write_json(work / "config.json", config)
    parameters = empty_backbone(work, torch.bfloat16).named_parameters()
    tensors = {name: TensorInfo(work, "BF16", tuple(p.shape), 0, 2 * p.numel()) for name, p in parameters}
    return Release(shape, work, config, tensors)


def main() -> None:
    """Run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--scheme", default="nvfp4")
    parser.add_argument("--algorithm", default="rtn")
    options = parser.parse_args()
    release = open_release(options.folder)
    stored = open_set(options.calibration, release.path, release_code(release.path))
    encoded = [record.encoded for record in stored]
    cpu = torch.device("cpu")
    with tempfile.TemporaryDirectory(dir=options.folder.parent) as work:
        command = [
            "quantize",
            "--model",
            str(options.folder),
            "--scheme",
            options.scheme,
            "--algorithm",
            options.algorithm,
        ]
        command += ["--calibration", str(options.calibration), "--out", f"{work}/checkpoint"]
        start = time.monotonic()
        subprocess.run([Path(sys.executable).with_name("clefquant"), *command], check=True)
        taken = time.monotonic() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    for name, found in ((options.folder.name, release), ("clef (27B)", None)):
        with tempfile.TemporaryDirectory() as work:
            shown = found or described("clef", Path(work))
            print(f"{name}: {memory_needed(shown, options.algorithm, encoded, cpu) / GIB:.1f} GiB foretold")
    print(f"{release.backbone_bytes / 1e9:.1f} GB, {len(encoded)} records: {taken:.0f} s, peak {peak / GIB:.2f} GiB")


if __name__ == "__main__":
    main()
