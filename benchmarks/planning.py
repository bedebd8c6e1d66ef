"""Layouts of this planner against other methods at equal bytes, measured on records that no method saw.

    python benchmarks/planning.py --model nano --calibration SET --eval SET --compare SET --out DIR [--mlps 6]

The size is that of "the first k MLPs in NVFP4, the rest in FP8"; no method may exceed it. Units are scored on half of
``--eval`` and layouts chosen on a quarter; all are compared on ``--compare``, record by record, whose records nothing
else has seen (without it on the last quarter). ``--out`` keeps every probe, so an interrupted run continues.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from clefquant.calibration.stored import open_set
from clefquant.errors import InputError
from clefquant.quantize.statistics import collect_statistics
from clefquant.release.code import release_code
from clefquant.release.load import load_release
from clefquant.release.release import open_release
from clefquant.sensitivity.baselines import first_units, published_greedy, random_layouts
from clefquant.sensitivity.fisher import fisher_table, rank_correlation
from clefquant.sensitivity.measure import Measurer
from clefquant.sensitivity.parts import split_evaluation
from clefquant.sensitivity.plan import Constraints
from clefquant.sensitivity.select import select
from clefquant.sensitivity.shards import check_disjoint
from clefquant.sensitivity.store import ProbeStore
from clefquant.sensitivity.sweep import STORE_FILE, sweep
from clefquant.sensitivity.table import Entry, SensitivityTable

RANDOM_LAYOUTS = 20


def ratio(ours: Entry, other: Entry, draws: int = 1000) -> tuple[float, float, float]:
    """Ratio of mean KL and its middle 90 % over records drawn anew, the same for both."""
    a, b = np.array(ours.record_kl), np.array(other.record_kl)
    weights = np.random.default_rng(0).multinomial(len(a), np.full(len(a), 1 / len(a)), size=draws)
    low, high = np.quantile((weights @ a) / (weights @ b), [0.05, 0.95])
    return float(a.sum() / b.sum()), float(low), float(high)


def size_of_first_mlps(table: SensitivityTable, count: int) -> int:
    """Unit bytes of the first ``count`` MLPs in nvfp4 and the rest in fp8."""
    mlps = [unit.name for unit in table.units if unit.kind == "mlp"][:count]
    return sum(unit.bytes["nvfp4" if unit.name in mlps else "fp8"] for unit in table.units)


# Long: a script, read from top to bottom.
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mlps", type=int, default=6)
    parser.add_argument("--candidates", type=int, default=12)
    options = parser.parse_args()

    release = open_release(options.model)
    code = release_code(release.path)
    calibration, evaluation = (list(open_set(path, release.path, code)) for path in (options.calibration, options.eval))
    check_disjoint(calibration, evaluation)
    parts = split_evaluation(evaluation)
    if options.compare:
        parts = parts._replace(held_out=list(open_set(options.compare, release.path, code)))
        check_disjoint([*calibration, *evaluation], parts.held_out)
    amax = {
        name: found.amax
        for name, found in collect_statistics(release, [record.encoded for record in calibration]).items()
    }
    loaded = load_release(release)
    options.out.mkdir(parents=True, exist_ok=True)
    table = sweep(loaded, amax, parts.sweep, ["fp8", "nvfp4", "mxfp4"], options.out)

    estimate = fisher_table(loaded, amax, parts.sweep, table.formats)
    limit = size_of_first_mlps(table, options.mlps)
    budget = f"{limit + table.other_bytes + table.head_bytes}B"
    layouts = {
        "published greedy": published_greedy(table, limit),
        "first MLPs": first_units(table, limit, "mlp"),
        "first units": first_units(table, limit),
        **{f"random {n}": x for n, x in enumerate(random_layouts(table, limit, table.formats, RANDOM_LAYOUTS, seed=0))},
    }
    allowed = {
        "three formats": Constraints(),
        "three formats, no bf16": Constraints(forbid=["bf16"]),
        "two formats": Constraints(forbid=["bf16", "mxfp4"]),
    }
    with ProbeStore(options.out / STORE_FILE) as store:
        measurer = Measurer(loaded, store, amax)
        for name, constraints in allowed.items():
            found = select(measurer, table, budget, parts, constraints, count=options.candidates)
            layouts[f"ours, {name}"] = found.choice.units
        kept = {name: units for name, units in layouts.items() if units is not None}
        measured = dict(zip(kept, measurer.measure(list(kept.values()), parts.held_out, "comparing"), strict=True))

    randoms = sorted((entry for name, entry in measured.items() if name.startswith("random")), key=lambda e: e.kl)
    others = {name: measured[name] for name in ("published greedy", "first MLPs", "first units") if name in measured}
    if not randoms or not others:
        raise InputError("no other method fits this size; choose fewer --mlps.")
    others["median random layout"] = randoms[len(randoms) // 2]
    result = {
        "budget": budget,
        "records": {name: len(part) for name, part in parts._asdict().items()},
        "fisher_rank_correlation": rank_correlation(estimate.entries, table.entries),
        "kl": {name: entry.kl for name, entry in measured.items()},
        "ratios": {
            f"{name} / {other}": [round(value, 3) for value in ratio(measured[name], entry)]
            for name in measured
            if name.startswith("ours")
            for other, entry in others.items()
        },
        "layouts": {name: kept[name] for name in kept if not name.startswith("random")},
    }
    (options.out / "planning.json").write_text(json.dumps(result, indent=2))
    print(
        json.dumps({key: result[key] for key in ("budget", "records", "fisher_rank_correlation", "ratios")}, indent=2)
    )


if __name__ == "__main__":
    main()
