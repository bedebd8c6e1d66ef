"""``verify``: a release against BF16 on evaluation sets, from the first load to the written report."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from clefquant.calibration.stored import StoredRecord, StoredSet, open_set
from clefquant.errors import CheckFailed, InputError
from clefquant.progress import SILENT, Progress
from clefquant.release.artefact import write_json, write_text
from clefquant.release.code import release_code
from clefquant.release.release import Release, open_release
from clefquant.verify.backends import SIMULATE, candidate_answers, check_backend
from clefquant.verify.chunks import Unfinished
from clefquant.verify.cluster import connect
from clefquant.verify.frontier import read_frontier
from clefquant.verify.gates import read_gate
from clefquant.verify.html import html
from clefquant.verify.markdown import markdown
from clefquant.verify.outcome import GateFailed, Options, VerifyReport
from clefquant.verify.questions import write_questions
from clefquant.verify.reference import reference_answers
from clefquant.verify.report import make_report
from clefquant.verify.stored_report import read_report

__all__ = ["GateFailed", "Options", "VerifyReport", "verify"]

_OURS = (
    "reference-*.parquet",
    "candidate-*.parquet",
    "questions.parquet",
    "report.json",
    "report.md",
    "report.html",
    "vllm.log",
    ".parts",
)


def verify(
    release: str | Path,
    against: str | Path,
    sets: Sequence[Path],
    out: Path,
    *,
    backend: str = SIMULATE,
    gate: Path | None = None,
    options: Options | None = None,
    progress: Progress = SILENT,
) -> VerifyReport:
    """Compare ``release`` with the BF16 ``against`` on every question of ``sets`` and write the report into ``out``.

    ``against``: a release or the ``reference-*.parquet`` of an earlier run. ``backend``: ``simulate``, ``vllm`` or a
    server's URL. Finished answers in ``out`` are used again. Raises GateFailed, after writing, when a limit of
    ``gate`` is not kept.
    """
    chosen = options or Options()
    check_backend(backend, chosen.python)
    if chosen.ray is not None:
        if chosen.shard != (0, 1):
            raise InputError("--ray hands the chunks out itself; leave --shard out.")
        connect(chosen.ray)  # before anything is computed
    limits = read_gate(gate) if gate else None
    frontier = read_frontier(chosen.sensitivity) if chosen.sensitivity else None
    opened = open_release(release)
    evaluation = _open_sets(sets, opened)
    records = [record for stored in evaluation.values() for record in stored]
    _check_records(records)
    _prepare(out, opened, chosen.restart)
    prints = {name: stored.fingerprint for name, stored in evaluation.items()}
    waiting: Unfinished | None = None
    try:
        reference, reference_path = reference_answers(
            str(against), records, prints, out,
            device=chosen.device, batch_tokens=chosen.batch_tokens, seed=chosen.seed, shard=chosen.shard,
            ray=chosen.ray, progress=progress,
        )  # fmt: skip
    except Unfinished as error:  # this worker's share of the candidate can still be done
        waiting = error
    candidate = candidate_answers(
        backend, opened, records, prints, out,
        device=chosen.device, batch_tokens=chosen.batch_tokens, python=chosen.python, engine=chosen.engine,
        key_file=chosen.key_file, shard=chosen.shard, ray=chosen.ray, progress=progress,
    )  # fmt: skip
    if waiting is not None:
        raise waiting
    value, pairs, measures = make_report(
        opened, reference, candidate, evaluation, records, limits, frontier, chosen.seed
    )
    report = VerifyReport(
        value, out / "report.json", out / "report.md", out / "report.html", out / "questions.parquet", reference_path
    )
    write_questions(report.questions, pairs, measures)
    write_text(report.markdown, markdown(value))
    write_text(report.html, html(value))
    write_json(report.json, value)
    if report.failures:
        raise GateFailed(report)
    return report


def _open_sets(paths: Sequence[Path], release: Release) -> dict[str, StoredSet]:
    if not paths:
        raise InputError("give at least one evaluation set; build one with `clefquant calibrate --split evaluation`.")
    code = release_code(release.path)
    names = [path.resolve().name for path in paths]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    return {label: open_set(path, release.path, code) for label, path in zip(labels, paths, strict=True)}


def _check_records(records: Sequence[StoredRecord]) -> None:
    if not any(record.encoded.questions for record in records):
        raise InputError(
            "the evaluation sets hold no question; build them with `clefquant calibrate --split evaluation`."
        )
    seen: set[str] = set()
    for record in records:
        if record.record_id in seen:
            raise CheckFailed(
                f"record id {record.record_id!r} is there more than once; ids must differ within and between the sets."
            )
        seen.add(record.record_id)


def _prepare(out: Path, release: Release, restart: bool) -> None:
    """Make ``out`` ours: empty, or left by an earlier run for the same release."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out must name a folder.")
    ours = [path for pattern in _OURS for path in out.glob(pattern)]
    if out.is_dir() and not ours and any(out.iterdir()):
        raise InputError(f"{out} holds files of something else. Choose a new folder for --out.")
    if restart:
        for path in ours:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif (out / "report.json").is_file():
        before = read_report(out)["parents"]["candidate"]
        if before != release.fingerprint:
            raise InputError(
                f"{out} holds the report of another release. Choose another --out, or --restart to replace it."
            )
    out.mkdir(parents=True, exist_ok=True)
