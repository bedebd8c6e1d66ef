"""From a model and a stored set to a checkpoint: the one call behind ``clefquant quantize`` and the pipeline."""

from pathlib import Path

from clefquant.calibration.stored import open_set
from clefquant.errors import InputError
from clefquant.progress import SILENT, Progress
from clefquant.quantize.checkpoint import check_quantizable, write_checkpoint
from clefquant.quantize.statistics import InputStatistics, collect_statistics
from clefquant.recipes.layout import Layout, read_layout, uniform_layout
from clefquant.release.code import release_code
from clefquant.release.release import Release


def chosen_layout(release: Release, scheme: str | None, layout_file: Path | None) -> Layout:
    """The layout of ``--scheme`` or ``--layout``; exactly one must be given."""
    if (scheme is None) == (layout_file is None):
        raise InputError("give either --scheme (one format everywhere) or --layout FILE (a format per unit).")
    return uniform_layout(release, scheme) if scheme is not None else read_layout(layout_file, release)  # type: ignore[arg-type]


def quantize(
    release: Release, layout: Layout, calibration: Path | None, out: Path, *, progress: Progress = SILENT
) -> Path:
    """Calibrate on the stored set (when given), quantize, and write the checkpoint ``out``.

    Raises InputError or PrerequisiteError before anything is written when the job cannot end well.
    """
    check_quantizable(release, layout, calibration is not None, out)
    statistics: dict[str, InputStatistics] = {}
    fingerprint = None
    if calibration is not None:
        stored = open_set(calibration, release.path, release_code(release.path))
        statistics = collect_statistics(release, [record.encoded for record in stored], progress=progress)
        fingerprint = stored.fingerprint
        warn_dead_inputs(statistics, progress)
    return write_checkpoint(release, layout, statistics, out, calibration_sha256=fingerprint, progress=progress)


def warn_dead_inputs(statistics: dict[str, InputStatistics], progress: Progress) -> None:
    """Name linears whose input was always zero: their scale falls back to 1 and says nothing."""
    if dead := [name for name, value in statistics.items() if value.amax == 0]:
        progress.warn(
            f"{len(dead)} linears saw only zeros in calibration, first {dead[0]}; their input scale is a guess."
        )
