"""Building a set: sources in order, each record checked, encoded and written, and a report of all of it."""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clefquant.calibration.encoding import load_encoder
from clefquant.calibration.finish import Job, finish
from clefquant.calibration.mixture import Mixture
from clefquant.calibration.partial import Partial, open_partial
from clefquant.calibration.prepare import Limits, Outcome
from clefquant.calibration.report import Against
from clefquant.calibration.source_config import ENDLESS_KINDS, Source
from clefquant.calibration.sources.registry import check_sources, drafts, local_files
from clefquant.calibration.statistics import SourceCounts
from clefquant.calibration.stored import read_header
from clefquant.calibration.workers import Workers
from clefquant.errors import InputError, PrerequisiteError
from clefquant.progress import SILENT, Progress, Task
from clefquant.release.locks import locked
from clefquant.release.release import Release

#: Outcomes in a row that are no new record after which an endless source is taken to be exhausted.
FRUITLESS_LIMIT = 2000


class Built(NamedTuple):
    """A finished set: its folder and its report."""

    path: Path
    report: dict[str, Any]


def build_set(
    release: Release,
    mixture: Mixture,
    split: Literal["calibration", "evaluation"] | None,
    out: Path,
    seed: int = 0,
    *,
    against: Sequence[Path] = (),
    drop_overlap: bool = False,
    strict: bool = False,
    workers: int | None = None,
    restart: bool = False,
    progress: Progress = SILENT,
) -> Built:
    """Write the set of ``mixture`` for ``release`` to the new folder ``out``.

    ``split`` None: the mixture's own. ``against``: sets that must share no content with this one; records that do are
    refused (CheckFailed with their ids) or left out (``drop_overlap``). ``strict``: InputError at the first bad record,
    else it is skipped and counted. The same inputs and seed give the same bytes, whatever the number of ``workers``.
    An interrupted build is continued unless ``restart``.
    """
    start = time.monotonic()
    check_sources(mixture.sources, Path(mixture.folder))
    encoder = load_encoder(release.path)
    job = Job(release, mixture, split or mixture.split, seed, tuple(against), drop_overlap)
    held = [_against(path) for path in against]
    asked = mixture.asked()
    total = None if None in asked.values() else sum(count or 0 for count in asked.values())
    with locked(out, out.parent / f".{out.name}.building.lock"):
        partial = open_partial(out, job.fingerprint(), restart)
        try:
            if not partial.resumed:
                partial.seen.hold(against)
                partial.sources = [_counts(source, asked[source.name]) for source in mixture.sources]
                partial.save()
            with (
                Workers(encoder, workers) as pool,
                progress.task("encoding", total, "records") as task,
            ):
                task.advance(sum(counts.records for counts in partial.sources))
                while partial.source < len(mixture.sources):
                    _build_source(mixture.sources[partial.source], job, partial, pool, strict, task)
                    partial.source, partial.used = partial.source + 1, 0
                    partial.save()
        finally:
            partial.close()
        report = finish(job, partial, held, out, time.monotonic() - start)
    for warning in report["warnings"]:
        progress.warn(warning)
    return Built(out, report)


def _build_source(source: Source, job: Job, partial: Partial, pool: Workers, strict: bool, task: Task) -> None:
    counts = partial.sources[partial.source]
    limits = Limits(source.name, job.mixture.max_length, source.max_state_tokens, source.min_state_tokens)
    task.note(source.name)
    if counts.records == counts.asked:
        return
    missing = [path for path in local_files(source, Path(job.mixture.folder)) if not path.exists()]
    if missing and source.optional:
        counts.skipped = f"there is no {missing[0]}"
        return
    try:
        found, counts.origin = drafts(source, Path(job.mixture.folder), job.split, job.seed, counts.asked, pool.encoder)
        counts.license = str(counts.origin.pop("license", counts.license))
        fruitless = 0
        for outcome in pool.prepared(islice(found, partial.used, None), limits):
            fruitless = 0 if _take(outcome, counts, partial, job, strict, task) else fruitless + 1
            partial.step()
            if counts.records == counts.asked or (fruitless >= FRUITLESS_LIMIT and source.kind in ENDLESS_KINDS):
                return
    except PrerequisiteError as error:
        if not source.optional:
            raise
        counts.skipped = str(error)


def _take(outcome: Outcome, counts: SourceCounts, partial: Partial, job: Job, strict: bool, task: Task) -> bool:
    """Decide about one outcome; whether it became a record of the set."""
    if outcome.fault is not None:
        if strict:
            raise InputError(f"{outcome.place}: {outcome.fault} (--strict stops at the first bad record).")
        counts.reject(outcome)
        partial.reject(outcome)
        return False
    if other := partial.seen.held_by(outcome.content):
        counts.overlap(outcome.record_id, other)
        if job.drop_overlap:
            return False
    twice = partial.seen.add(outcome.sha256, outcome.record_id)
    if twice == "record":
        counts.duplicates += 1
        return False
    if twice == "id":
        bad = Outcome(
            outcome.place, outcome.record_id, fault=f"the id {outcome.record_id!r} is taken by an earlier record"
        )
        return _take(bad, counts, partial, job, strict, task)
    partial.write(outcome)
    counts.accept(outcome)
    task.advance()
    return True


def _counts(source: Source, asked: int | None) -> SourceCounts:
    return SourceCounts(source.name, source.kind, asked, source.license, max_state_tokens=source.max_state_tokens)


def _against(path: Path) -> Against:
    header = read_header(path)
    return Against(path, int(header["records"]), int(header["longest_tokens"]))
