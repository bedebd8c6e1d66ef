"""The planned layout against "the first k units in NVFP4, the rest in FP8" of the same bytes, on a set nobody chose on.

    python benchmarks/first_units.py RUN [--units 8]

RUN: a finished `clefquant run` with a plan (its sweep, its input statistics, its evaluation set). Prints one JSON line.
"""

import argparse
import json
import tempfile
from pathlib import Path

from clefquant.calibration.stored import open_set
from clefquant.quantize.statistics import read_statistics
from clefquant.release.code import release_code
from clefquant.release.load import load_release
from clefquant.release.release import open_release
from clefquant.sensitivity.measure import Measurer
from clefquant.sensitivity.plan import plan
from clefquant.sensitivity.store import ProbeStore
from clefquant.sensitivity.table import read_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--units", type=int, default=8)
    options = parser.parse_args()

    table = read_table(options.run / "sensitivity" / "sensitivity.json")
    first = {unit.name: "nvfp4" if n < options.units else "fp8" for n, unit in enumerate(table.units)}
    limit = sum(unit.bytes[first[unit.name]] for unit in table.units) + table.other_bytes + table.head_bytes
    planned = plan(table, f"{limit}B").units

    release = open_release(table.model)
    records = list(open_set(options.run / "evaluation", release.path, release_code(release.path)))
    found = read_statistics(options.run / "sensitivity" / "input_statistics.json")
    amax = {name: value.amax for name, value in found.items()}
    with tempfile.TemporaryDirectory() as folder, ProbeStore(Path(folder) / "probes.sqlite") as store:
        measurer = Measurer(load_release(release), store, amax)
        of_first, of_planned = measurer.measure([first, planned], records, "comparing")
    print(
        json.dumps(
            {
                "records": len(records),
                "release_bytes": limit,
                "kl_first_units": of_first.kl,
                "kl_planned": of_planned.kl,
                "ratio": round(of_planned.kl / of_first.kl, 4),
            }
        )
    )


if __name__ == "__main__":
    main()
