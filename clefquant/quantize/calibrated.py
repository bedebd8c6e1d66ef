"""From a model and a stored set to a checkpoint: the one call behind ``clefquant quantize`` and the pipeline."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clefquant import __version__
from clefquant.calibration.stored import open_set
from clefquant.errors import InputError, PrerequisiteError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.algorithms import check_algorithm, find_algorithm, to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.preflight import Plan, check
from clefquant.quantize.preflight import plan as make_plan
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.statistics import InputStatistics, collect_statistics, read_earlier
from clefquant.quantize.unfinished import Unfinished, alone
from clefquant.recipes.awq import SMOOTHED, check_smoothed
from clefquant.recipes.layout import Layout, read_layout, uniform_layout
from clefquant.release.artefact import package_versions
from clefquant.release.code import release_code
from clefquant.release.load import default_device
from clefquant.release.release import Release

#: What torch's RuntimeError says when main memory is full; on a GPU it has a class of its own.
_OF_THE_CPU_ALLOCATOR = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


def chosen_layout(release: Release, scheme: str | None, layout_file: Path | None) -> Layout:
    """The layout of ``--scheme`` or ``--layout``; exactly one must be given."""
    if scheme is not None and layout_file is None:
        return uniform_layout(release, scheme)
    if layout_file is not None and scheme is None:
        return read_layout(layout_file, release)
    raise InputError("give either --scheme (one format everywhere) or --layout FILE (a format per unit).")


@dataclass(frozen=True)
class Job:
    """One quantization, checked: it can end well as far as that can be known. ``encoded``: the records."""

    release: Release
    layout: Layout
    algorithm: str
    out: Path
    encoded: Sequence[Any]
    calibration_sha256: str | None
    scales: Scales = DEFAULT_SCALES

    def plan(self) -> Plan:
        """What it will take."""
        return make_plan(self.release, self.layout, self.algorithm, self.encoded, self.out)

    def identity(self) -> dict[str, Any]:
        """Everything that decides a byte of the result. The number of processes does not, but for the order of sums."""
        return {
            "model": self.release.fingerprint,
            "calibration": self.calibration_sha256,
            "units": self.layout.units,
            "algorithm": self.algorithm,
            "scales": asdict(self.scales),
            "device": str(default_device()),
            "versions": {"clefquant": __version__, **package_versions()},
        }


def prepare(
    release: Release,
    layout: Layout,
    calibration: Path | None,
    out: Path,
    *,
    algorithm: str = "rtn",
    scales: Scales = DEFAULT_SCALES,
    compare: Path | None = None,
) -> Job:
    """Check everything that can be known in seconds and read the stored set.

    Raises InputError or PrerequisiteError, with nothing written, when the job cannot end well.
    """
    check_algorithm(algorithm, calibration is not None)
    if compare is not None and algorithm != "rtn":
        raise InputError(
            f"--compare measures inputs of the source model, {algorithm} those of the quantized one; they cannot be "
            "compared. Compare the sets with --algorithm rtn, and leave --compare out here."
        )
    scales.check(layout.units.values())
    if algorithm in SMOOTHED:
        check_smoothed(algorithm, release.units, layout.units)
    check(release, layout, calibration is not None, out)
    stored = None if calibration is None else open_set(calibration, release.path, release_code(release.path))
    encoded = [] if stored is None else [record.encoded for record in stored]
    return Job(release, layout, algorithm, out, encoded, None if stored is None else stored.fingerprint, scales)


def quantize(
    release: Release,
    layout: Layout,
    calibration: Path | None,
    out: Path,
    *,
    algorithm: str = "rtn",
    scales: Scales = DEFAULT_SCALES,
    compare: Path | None = None,
    earlier: Path | None = None,
    restart: bool = False,
    progress: Progress = SILENT,
) -> Path:
    """Calibrate on the stored set (when given), quantize, and write the checkpoint ``out``.

    ``compare``: another stored set whose inputs are measured too, for headroom (``rtn`` alone). ``earlier``: a file of
    input statistics; when they are of this model and set, rounding to nearest runs no pass anew. A run that was cut
    off is gone on with unless ``restart``. Raises as :func:`prepare`.
    """
    job = prepare(release, layout, calibration, out, algorithm=algorithm, scales=scales, compare=compare)
    with alone(out), _memory_explained(job.encoded):
        return _run(job, compare, earlier, restart, progress)


def _run(job: Job, compare: Path | None, earlier: Path | None, restart: bool, progress: Progress) -> Path:
    release, layout, algorithm, out = job.release, job.layout, job.algorithm, job.out
    other = None if compare is None else _inputs_of(release, compare, progress)
    statistics = None
    if algorithm == "rtn" and earlier is not None and job.calibration_sha256 is not None:
        statistics = read_earlier(earlier, {"model": release.fingerprint, "calibration": job.calibration_sha256})
    unfinished = Unfinished(out, job.identity() | {"runs_records": statistics is None}, restart=restart)
    if statistics is None:
        results = find_algorithm(algorithm)(release, layout, job.encoded, progress, unfinished, job.scales)
    else:
        results = to_nearest(release, layout, statistics, unfinished, job.scales)
    return write_checkpoint(
        release,
        layout,
        results,
        out,
        algorithm=algorithm,
        scales=job.scales,
        calibration_sha256=job.calibration_sha256,
        other_inputs=other,
        unfinished=unfinished,
        progress=progress,
    )


@contextmanager
def _memory_explained(encoded: Sequence[Any]) -> Iterator[None]:
    """Turn running out of memory into what can be done about it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error) or "Python could allocate no more."
        exhausted = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not exhausted and not any(words in said for words in _OF_THE_CPU_ALLOCATOR):
            raise
        lengths = sorted(len(record.input_ids) for record in encoded)
        records = f"{len(lengths)} records, longest {lengths[-1]:,} tokens" if lengths else "no records"
        raise PrerequisiteError(
            f"not enough memory with {records}: {said.splitlines()[0]} Use shorter or fewer records; "
            "`--dry-run` says what is needed. Finished layers are kept."
        ) from error


def _inputs_of(release: Release, stored: Path, progress: Progress) -> dict[str, InputStatistics]:
    records = open_set(stored, release.path, release_code(release.path))
    return collect_statistics(release, [record.encoded for record in records], progress=progress)
