"""The whole of ``clefquant sensitivity``: sets in, table, layout, frontier and pictures out. Used by the pipeline
too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clefquant.calibration.stored import StoredSet, open_set
from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.statistics import KIND, SCHEMA_VERSION, collect_statistics, read_earlier, write_statistics
from clefquant.recipes.formats import BF16
from clefquant.recipes.layout import Layout
from clefquant.release.artefact import provenance
from clefquant.release.code import release_code
from clefquant.release.load import DEFAULT_BATCH_TOKENS, load_release
from clefquant.release.release import Release
from clefquant.release.states import DEFAULT_CACHE_BYTES
from clefquant.sensitivity.assemble import Metric, assemble, checked_formats, unit_infos
from clefquant.sensitivity.budget import parse_budget
from clefquant.sensitivity.cost import COST_FILE, Cost, device_name, measure_cost, read_cost
from clefquant.sensitivity.fisher import fisher_table
from clefquant.sensitivity.frontier_picture import draw_selection
from clefquant.sensitivity.measure import Measurer
from clefquant.sensitivity.parts import split_evaluation
from clefquant.sensitivity.pictures import draw_table
from clefquant.sensitivity.plan import NO_CONSTRAINTS, Constraints, check_within_reach, planning_options
from clefquant.sensitivity.probe import NOISE
from clefquant.sensitivity.rounding import Rounding
from clefquant.sensitivity.select import DEFAULT_CANDIDATES, select
from clefquant.sensitivity.selection import Selection
from clefquant.sensitivity.shards import BATCH_TOKENS, DEFAULT_SHARD_TOKENS, check_disjoint
from clefquant.sensitivity.sizing import sizing
from clefquant.sensitivity.spread import RayRunner
from clefquant.sensitivity.store import ProbeStore
from clefquant.sensitivity.sweep import CSV_FILE, STORE_FILE, TABLE_FILE, sweep
from clefquant.sensitivity.table import Entry, Figure, SensitivityTable
from clefquant.verify.cluster import connect

STATISTICS_FILE, FRONTIER_FILE, LAYOUT_FILE = "input_statistics.json", "frontier.json", "layout.json"


@dataclass(frozen=True)
class Outcome:
    """What a run made. ``files``: by what they are."""

    table: SensitivityTable
    selection: Selection
    layout: Layout
    files: dict[str, Path]


# Long: nothing but the steps one after another, each with the options that it takes.
def run_sensitivity(
    release: Release,
    calibration: Path,
    evaluation: Path,
    formats: Sequence[str],
    budget: str,
    out: Path,
    *,
    metric: Metric = "measured",
    constraints: Constraints = NO_CONSTRAINTS,
    candidates: int = DEFAULT_CANDIDATES,
    batch_tokens: int | None = None,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    adaptive: bool = False,
    algorithm: str = "rtn",
    scales: Scales = DEFAULT_SCALES,
    ray_address: str | None = None,
    restart: bool = False,
    progress: Progress = SILENT,
) -> Outcome:
    """Sweep on one part of ``evaluation``, choose a layout within ``budget`` on a second, measure it on a third.

    ``calibration`` and ``evaluation`` are stored sets of this release. ``out`` may hold an interrupted run, which is
    continued unless ``restart``. ``metric`` ``fisher`` estimates the units' damage from one backward pass instead of
    probing; candidates are measured all the same. ``batch_tokens`` None: by device. ``algorithm``, ``scales``: how
    weights are rounded, as in `clefquant quantize`. ``adaptive``: more records where ranks are uncertain.
    ``ray_address``: spread the probes over a Ray cluster (``auto`` for one on this machine). ``budget``: of time,
    needs the present device's times, which are measured first. Everything that can be refused is refused before the
    first slow step.
    """
    names = checked_formats(release, formats)
    scales.check(names)
    if metric == "fisher":
        check_estimate(algorithm, adaptive, ray_address)
    cost = known_cost(release, names, budget, None if restart else out / COST_FILE, progress)
    check_request(release, names, budget, constraints, cost)
    if ray_address:
        connect(ray_address)
    code = release_code(release.path)
    stored = [open_set(path, release.path, code) for path in (calibration, evaluation)]
    calibrating, records = list(stored[0]), list(stored[1])
    check_disjoint(calibrating, records)
    rounding = Rounding(algorithm, scales, tuple(calibrating) if algorithm == "gptq" else ())
    parts = split_evaluation(records)
    out.mkdir(parents=True, exist_ok=True)
    if cost is not None:
        cost.write(out / COST_FILE)
    if restart:
        for name in (STORE_FILE, STATISTICS_FILE):
            (out / name).unlink(missing_ok=True)

    input_amax = calibrated_amax(release, stored[0], out / STATISTICS_FILE, progress)
    loaded = load_release(release)
    batch_tokens = batch_tokens or BATCH_TOKENS.get(loaded.device.type, DEFAULT_BATCH_TOKENS)
    if metric == "fisher":
        table = fisher_table(
            loaded, input_amax, parts.sweep, names,
            batch_tokens=batch_tokens, shard_tokens=shard_tokens, scales=scales, progress=progress,
        )  # fmt: skip
        table.write(out / TABLE_FILE)
        table.write_csv(out / CSV_FILE)
    else:
        table = sweep(
            loaded, input_amax, parts.sweep, names, out, batch_tokens=batch_tokens, shard_tokens=shard_tokens,
            cache_bytes=cache_bytes, adaptive=adaptive, rounding=rounding, progress=progress,
            runner=RayRunner(loaded, ray_address, cache_bytes, rounding) if ray_address else None,
        )  # fmt: skip
    with ProbeStore(out / STORE_FILE) as store:
        measurer = Measurer(loaded, store, input_amax, batch_tokens, shard_tokens, progress, rounding)
        selection = select(measurer, table, budget, parts, constraints, cost=cost, count=candidates)
    if not selection.within:
        progress.warn(f"no candidate was measured within {budget}; the layout is the one with the least KL.")
    return _written(out, table, selection, cost)


def check_estimate(algorithm: str, adaptive: bool, ray_address: str | None) -> None:
    """InputError for what an estimate by one backward pass cannot do."""
    given = {"--algorithm": algorithm != "rtn", "--adaptive": adaptive, "--ray": ray_address is not None}
    if refused := [option for option, is_given in given.items() if is_given]:
        raise InputError(
            f"--metric fisher estimates rounding to nearest in one pass of this process; it cannot take "
            f"{' and '.join(refused)}. Leave it out, or use --metric measured."
        )


def _written(out: Path, table: SensitivityTable, selection: Selection, cost: Cost | None) -> Outcome:
    """Write the choice, its layout and the pictures beside the table."""
    layout = selection.layout(table)
    selection.write(out / FRONTIER_FILE)
    layout.write(out / LAYOUT_FILE)
    files = {
        "table": TABLE_FILE,
        "csv": CSV_FILE,
        "probes": STORE_FILE,
        "frontier": FRONTIER_FILE,
        "layout": LAYOUT_FILE,
        **({"cost": COST_FILE} if cost else {}),
    }
    pictures = {**draw_table(table, out), **draw_selection(table, selection, out)}
    return Outcome(table, selection, layout, {**{name: out / file for name, file in files.items()}, **pictures})


def known_cost(
    release: Release, formats: Sequence[str], budget: str, file: Path | None, progress: Progress
) -> Cost | None:
    """What a ``time=`` budget is counted by: of this device, from ``file`` when it is there, else measured now."""
    if parse_budget(budget).kind not in ("time", "milliseconds"):
        return None
    if file is not None and file.is_file():
        found = read_cost(file)
        same = found.origin["parents"] == {"model": release.fingerprint} and found.device == device_name()
        if same and set(formats) <= set(found.kernels):
            return found
    return measure_cost(release, formats, progress=progress)


def check_request(
    release: Release, formats: Sequence[str], budget: str, constraints: Constraints, cost: Cost | None = None
) -> None:
    """Refuse a budget, pin or ban that no result of a sweep could satisfy: sizes are known before it."""
    nothing = {"kl": Figure(value=0.0, error=None, questions=0)}
    entries = [
        Entry(unit=unit.name, format=name, figures=nothing)
        for unit in unit_infos(release, formats)
        for name in unit.bytes
        if name != BF16.name
    ]
    sizes = assemble(release, formats, [], {}, Entry(unit="", format=NOISE), entries)
    wanted = parse_budget(budget)
    counted = sizing(sizes, wanted, cost)
    options = planning_options(sizes, constraints, counted)
    if wanted.kind != "kl":
        check_within_reach(wanted, counted, options, constraints.max_formats)


def calibrated_amax(release: Release, calibration: StoredSet, file: Path, progress: Progress) -> Mapping[str, float]:
    """Largest absolute input per linear on the calibration set; ``file`` keeps it for a resumed run."""
    parents = {"model": release.fingerprint, "calibration": calibration.fingerprint}
    found = read_earlier(file, parents)
    if found is None:
        found = collect_statistics(release, [record.encoded for record in calibration], progress=progress)
        write_statistics(file, found, provenance(KIND, SCHEMA_VERSION, parents))
    return {name: value.amax for name, value in found.items()}
