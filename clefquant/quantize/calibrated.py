"""From a model and a stored set to a checkpoint: the one call behind ``clefquant quantize`` and the pipeline."""

from pathlib import Path

from clefquant.calibration.stored import open_set
from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.algorithms import find_algorithm, to_nearest
from clefquant.quantize.checkpoint import check_quantizable, write_checkpoint
from clefquant.quantize.statistics import read_earlier
from clefquant.recipes.layout import Layout, read_layout, uniform_layout
from clefquant.release.code import release_code
from clefquant.release.release import Release


def chosen_layout(release: Release, scheme: str | None, layout_file: Path | None) -> Layout:
    """The layout of ``--scheme`` or ``--layout``; exactly one must be given."""
    if scheme is not None and layout_file is None:
        return uniform_layout(release, scheme)
    if layout_file is not None and scheme is None:
        return read_layout(layout_file, release)
    raise InputError("give either --scheme (one format everywhere) or --layout FILE (a format per unit).")


def quantize(
    release: Release,
    layout: Layout,
    calibration: Path | None,
    out: Path,
    *,
    algorithm: str = "rtn",
    earlier: Path | None = None,
    progress: Progress = SILENT,
) -> Path:
    """Calibrate on the stored set (when given), quantize, and write the checkpoint ``out``.

    ``earlier``: a file of input statistics; when they are of this model and set, rounding to nearest runs no pass anew.
    Raises InputError or PrerequisiteError before anything is written when the job cannot end well.
    """
    run = find_algorithm(algorithm)
    check_quantizable(release, layout, calibration is not None, out)
    stored = None if calibration is None else open_set(calibration, release.path, release_code(release.path))
    encoded = [] if stored is None else [record.encoded for record in stored]
    fingerprint = None if stored is None else stored.fingerprint
    results = run(release, layout, encoded, progress)
    if algorithm == "rtn" and earlier is not None and fingerprint is not None:
        parents = {"model": release.fingerprint, "calibration": fingerprint}
        if (statistics := read_earlier(earlier, parents)) is not None:
            results = to_nearest(release, layout, statistics)
    return write_checkpoint(
        release, layout, results, out, algorithm=algorithm, calibration_sha256=fingerprint, progress=progress
    )
