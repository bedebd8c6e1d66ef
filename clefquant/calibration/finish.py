"""The end of a build: refuse an empty or overlapping set, write header, report and picture, rename."""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from clefquant.calibration.histogram import draw_histogram
from clefquant.calibration.mixture import Mixture
from clefquant.calibration.partial import Partial, prune_media
from clefquant.calibration.report import Against, make_report
from clefquant.calibration.sources.registry import local_files
from clefquant.calibration.statistics import merged_lengths
from clefquant.calibration.stored import (
    HEADER_FILE,
    HISTOGRAM_FILE,
    KIND,
    MEDIA_FOLDER,
    RECORDS_FILE,
    REPORT_FILE,
    SCHEMA_VERSION,
    TOKENIZER_FILE,
    read_header,
    read_lines,
)
from clefquant.errors import CheckFailed, InputError
from clefquant.release.artefact import provenance, sha256_file, sha256_json, write_json
from clefquant.release.release import CODE_FILE, Release

IDS_SHOWN = 10


@dataclass(frozen=True)
class Job:
    """What decides the bytes of a set."""

    release: Release
    mixture: Mixture
    split: Literal["calibration", "evaluation"]
    seed: int
    against: tuple[Path, ...]
    drop_overlap: bool

    def fingerprint(self) -> dict[str, Any]:
        """Equal for two runs that write the same set; local files by size and time, so that it costs nothing."""
        folder = Path(self.mixture.folder)
        files = [file for source in self.mixture.sources for file in local_files(source, folder)]
        return {
            "parents": self.parents,
            "split": self.split,
            "seed": self.seed,
            "drop_overlap": self.drop_overlap,
            "files": {str(file): [file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.exists()},
        }

    @cached_property
    def parents(self) -> dict[str, str]:
        """sha256 of everything the set is made from, but the sources' own files."""
        parents = {
            "mixture": sha256_json(self.mixture.model_dump(mode="json")),
            TOKENIZER_FILE: sha256_file(self.release.path / TOKENIZER_FILE),
            CODE_FILE: sha256_file(self.release.path / CODE_FILE),
        }
        names = [path.name for path in self.against]
        labels = names if len(set(names)) == len(names) else [str(path) for path in self.against]
        hashes = [read_header(path)["records_sha256"] for path in self.against]
        return parents | {f"against {label}": found for label, found in zip(labels, hashes, strict=True)}


def finish(job: Job, partial: Partial, against: list[Against], out: Path, seconds: float) -> dict[str, Any]:
    """Write what is left, rename, and return the report. CheckFailed on overlap, InputError when no record is left."""
    sources, folder = partial.sources, partial.folder
    overlaps = [pair for source in sources for pair in source.overlaps]
    if overlaps and not job.drop_overlap:
        shutil.rmtree(folder, ignore_errors=True)
        number = sum(source.overlapping for source in sources)
        shown = ", ".join(f"{mine} (= {theirs})" for mine, theirs in overlaps[:IDS_SHOWN])
        raise CheckFailed(
            f"{number:,} records hold what {' and '.join(str(path) for path in job.against)} holds: {shown}"
            f"{', …' if number > IDS_SHOWN else ''}. Leave them out with --drop-overlap, or change the mixture."
        )
    report = make_report(job.mixture.name, job.split, sources, against, job.drop_overlap, seconds)
    if not report["records"]:
        reasons = "; ".join(report["warnings"][:4]) or "the sources are empty"
        shutil.rmtree(folder, ignore_errors=True)
        raise InputError(f"not one record is left of {job.mixture.name}: {reasons}")
    lengths = merged_lengths(sources)
    draw_histogram(lengths, f"{job.mixture.name} ({job.split})", folder / HISTOGRAM_FILE)
    if (folder / MEDIA_FOLDER).is_dir():
        prune_media(folder, _used_media(folder))
    head = provenance(KIND, SCHEMA_VERSION, job.parents, job.seed)
    command = head.pop("command")  # differs between runs that give the same set; the report keeps it
    records_sha256 = sha256_file(folder / RECORDS_FILE)
    header = {
        **head,
        "name": job.mixture.name,
        "split": job.split,
        "records": report["records"],
        "tokens": report["tokens"],
        "longest_tokens": max(lengths),
        "max_length": job.mixture.max_length,
        "sources": [_source_line(source.to_json()) for source in sources],
        "tokenizer_sha256": head["parents"][TOKENIZER_FILE],
        "code_sha256": head["parents"][CODE_FILE],
        "records_sha256": records_sha256,
    }
    write_json(folder / REPORT_FILE, {**report, "command": command})
    write_json(folder / HEADER_FILE, header)
    partial.finish(out)
    return report


def _source_line(counts: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "kind", "license", "origin", "asked", "records", "tokens", "max_state_tokens")
    return {key: counts[key] for key in kept}


def _used_media(folder: Path) -> set[str]:
    used: set[str] = set()
    for line in read_lines(folder):
        for item in [*(line["record"].get("images") or ()), *(line["record"].get("videos") or ())]:
            used.update(item.get("frames") or [item["file"]])
    return used
