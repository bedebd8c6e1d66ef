"""Writes nano releases and the answers they must give, for the serving environment to check (files, not code).

Usage: make_releases.py OUT. For every name: OUT/NAME (a release folder with its probe) and OUT/NAME.json
({"records": [...], "logits": [{question: {option: logit}}, ...], "noise_floor": largest change of a probability when
the simulation itself computes in bfloat16}: with the release's own stored weights).
"""

import json
import shutil
import sys
from pathlib import Path

import torch

from clefquant.calibration.build import build_set
from clefquant.calibration.mixture import load_mixture
from clefquant.calibration.stored import StoredRecord, open_set
from clefquant.export.release_folder import export_release
from clefquant.export.tables import shrink_tables
from clefquant.pipeline.probe import largest_change, make_probe, simulated_logits
from clefquant.quantize.calibrated import quantize
from clefquant.recipes.layout import make_layout
from clefquant.release.code import release_code
from clefquant.release.release import Release, open_release

MIXED = ("nvfp4", "fp8", "mxfp4", "bf16")
#: Release name to (formats its units get in turn, int8 tables).
RELEASES = {
    "fp8": (("fp8",), False),
    "nvfp4": (("nvfp4",), False),
    "mxfp4": (("mxfp4",), False),
    "mixed-int8-tables": (MIXED, True),
}
_RECORDS = 24
_MAX_TOKENS = 400


def main(out: Path) -> None:
    """Write every release."""
    nano = open_release("nano")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name, mixture in (("calibration", "nano"), ("evaluation", "nano-eval")):
        build_set(nano, load_mixture(mixture), None, out / "sets" / name)
    stored = open_set(out / "sets" / "evaluation", nano.path, release_code(nano.path))
    records = [record for record in stored if record.tokens <= _MAX_TOKENS][:_RECORDS]
    for name, (formats, int8_tables) in RELEASES.items():
        _write(nano, out, name, formats, int8_tables, records)


def _write(
    nano: Release, out: Path, name: str, formats: tuple[str, ...], int8_tables: bool, records: list[StoredRecord]
) -> None:
    checkpoint = out / "checkpoints" / name
    layout = make_layout(nano, {unit.name: formats[i % len(formats)] for i, unit in enumerate(nano.units)})
    quantize(nano, layout, out / "sets" / "calibration", checkpoint)
    if int8_tables:
        shrink_tables(checkpoint)
    export_release(checkpoint, out / name, probe=make_probe(checkpoint, records))
    logits = simulated_logits(out / name, records)
    rounded = simulated_logits(out / name, records, dtype=torch.bfloat16)
    floor = max(largest_change(a, b) for a, b in zip(logits, rounded, strict=True))
    expected = {"records": [r.record for r in records], "logits": logits, "noise_floor": floor}
    (out / f"{name}.json").write_text(json.dumps(expected), encoding="utf-8")
    print(f"{name}: {layout.bits_per_weight} bits a weight, bfloat16 alone moves a probability by up to {floor:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
