"""``verify``: a release against BF16 on evaluation sets, from the first load to the written report."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clefquant.calibration.stored import StoredRecord, StoredSet, open_set
from clefquant.errors import CheckFailed, InputError
from clefquant.progress import SILENT, Progress
from clefquant.release.artefact import write_json, write_text
from clefquant.release.code import release_code
from clefquant.release.load import DEFAULT_BATCH_TOKENS
from clefquant.release.release import Release, open_release
from clefquant.verify.backends import SIMULATE, candidate_answers, check_backend
from clefquant.verify.chunks import Shard
from clefquant.verify.frontier import read_frontier
from clefquant.verify.gates import read_gate
from clefquant.verify.html import html
from clefquant.verify.markdown import markdown
from clefquant.verify.questions import write_questions
from clefquant.verify.reference import reference_answers
from clefquant.verify.report import describe_failure, make_report, read_report

_OURS = ("reference-*.parquet", "candidate-*.parquet", "questions.parquet", "report.json", "report.md", "report.html", "vllm.log", ".parts")


@dataclass(frozen=True)
class Options:
    """What rarely changes.

    ``python``: of the serving environment, for the vllm backend. ``shard``: (this worker, workers). ``restart``: discard what
    an earlier run left in the output folder. ``sensitivity``: result folder of a sweep, for the frontier plot.
    """

    device: torch.device | None = None
    batch_tokens: int = DEFAULT_BATCH_TOKENS
    seed: int = 0
    python: Path | None = None
    shard: Shard = (0, 1)
    restart: bool = False
    sensitivity: Path | None = None


@dataclass(frozen=True)
class VerifyReport:
    """A finished verification: the value of ``report.json`` and where everything was written."""

    value: dict[str, Any]
    json: Path
    markdown: Path
    html: Path
    questions: Path
    reference: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The figures people ask for first; shares from 0 to 1, None when undefined."""
        row, noise = self.value["tables"]["all"][0], self.value["noise"]
        figures = ("agreement", "kl", "tv", "accuracy", "accuracy_reference", "accuracy_change", "ece", "ece_reference")
        return {
            "verdict": self.value["verdict"]["level"],
            "headline": self.value["verdict"]["headline"],
            "records": row["records"],
            "questions": row["questions"],
            **{name: None if row[name] is None else row[name]["value"] for name in figures},
            "flips": row["flips"],
            "confident_flips": row["confident_flips"],
            "nan": row["nan"],
            "noise_agreement": min((one["agreement"]["value"] for one in noise if one["agreement"]), default=None),
            "noise_kl": max((one["kl"]["value"] for one in noise if one["kl"]), default=None),
            "bytes": self.value["candidate"]["bytes"],
            "reference_bytes": self.value["reference"]["bytes"],
            "gate_passed": None if self.value["gate"] is None else not self.failures,
        }

    @property
    def failures(self) -> list[str]:
        """Limits of the gate that failed, as sentences."""
        limits = self.value["gate"]["limits"] if self.value["gate"] else []
        return [describe_failure(one) for one in limits if not one["passed"]]


class GateFailed(CheckFailed):
    """The report was written, and its gate failed."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__("the gate failed:\n  " + "\n  ".join(report.failures) + f"\nAll figures: {report.html}")
        self.report = report


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

    ``against``: a release or the ``reference-*.parquet`` of an earlier run. ``backend``: ``simulate``, ``vllm`` or a server's URL.
    Finished answers in ``out`` are used again. Raises GateFailed, after writing, when a limit of ``gate`` is not kept.
    """
    chosen = options or Options()
    check_backend(backend, chosen.python)
    limits = read_gate(gate) if gate else None
    frontier = read_frontier(chosen.sensitivity) if chosen.sensitivity else None
    opened = open_release(release)
    evaluation = _open_sets(sets, opened)
    records = [record for stored in evaluation.values() for record in stored]
    _check_records(records)
    _prepare(out, opened, chosen.restart)
    prints = {name: stored.fingerprint for name, stored in evaluation.items()}
    reference, reference_path = reference_answers(
        str(against), records, prints, out,
        device=chosen.device, batch_tokens=chosen.batch_tokens, seed=chosen.seed, shard=chosen.shard, progress=progress,
    )  # fmt: skip
    candidate = candidate_answers(
        backend, opened, records, prints, out,
        device=chosen.device, batch_tokens=chosen.batch_tokens, python=chosen.python, shard=chosen.shard, progress=progress,
    )  # fmt: skip
    value, pairs, measures = make_report(opened, reference, candidate, evaluation, records, limits, frontier, chosen.seed)
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
        raise InputError("the evaluation sets hold no question; build them with `clefquant calibrate --split evaluation`.")
    seen: set[str] = set()
    for record in records:
        if record.record_id in seen:
            raise CheckFailed(f"record id {record.record_id!r} is there more than once; ids must differ within and between the sets.")
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
            raise InputError(f"{out} holds the report of another release. Choose another --out, or --restart to replace it.")
    out.mkdir(parents=True, exist_ok=True)
