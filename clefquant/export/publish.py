"""Publishing a release: nothing unchecked leaves, nothing is sent twice, and what arrived is what was sent."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from clefquant.errors import CheckFailed, InputError
from clefquant.export.audit import audit
from clefquant.export.card import CARD_FILE, FACTS_FILE, HUB_ID
from clefquant.export.changes import changes_section
from clefquant.export.figures import failed_limits, gate_passed
from clefquant.export.hub import Hub, Remote, same
from clefquant.export.lint import lint_card
from clefquant.export.plugin import PLUGIN_FOLDER
from clefquant.export.sums import SUMS_FILE, release_files
from clefquant.export.verified import check_report, complete_card, read_sums
from clefquant.progress import SILENT, Progress
from clefquant.verify.stored_report import REPORT_FILE, read_report

#: Files of the Hub itself, which a release does not have and publishing does not remove.
_HUBS_OWN = (".gitattributes",)


class Published(NamedTuple):
    """``sent``: files uploaded now, in order; ``kept``: what the Hub had; ``commit``, ``url``: None on a dry run."""

    repo: str
    sent: list[str]
    kept: list[str]
    removed: list[str]
    bytes: int
    commit: str | None
    url: str | None
    tag: str | None


def publish(
    release: Path,
    repo: str,
    *,
    report: Path | None = None,
    private: bool = False,
    tag: str | None = None,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Published:
    """Upload the release folder to ``repo``. CheckFailed, before a byte is sent, when it is not fit to be published.

    Needs a clean audit and a verify report of these very bytes whose gate passed: ``report``, the one in the release,
    or ``report/report.json`` beside it. The card gets the report's figures and the repository's name. ``dry_run``:
    sends nothing and needs no token; without one a private repository looks like one that does not exist.
    """
    if not HUB_ID.fullmatch(repo):
        raise InputError(f"--repo is {repo!r}; a repository has the form ORG/NAME.")
    check_release(release, progress)
    path = find_report(release, report)
    _check_gate(release, path)
    with _staged(release) as stage:
        complete_card(stage, report=path, repo=repo)
        faults = lint_card(stage, (stage / CARD_FILE).read_text(encoding="utf-8"), repo)
        if faults:
            raise CheckFailed("the card is not fit to be published: " + "; ".join(faults) + ".")
        hub = Hub(repo, writes=not dry_run)
        there = hub.files()
        if there:
            section = changes_section(stage, hub, there)
            if section:
                complete_card(stage, report=None, repo=repo, changes=section)
        if tag is not None and there is not None and tag in hub.tags():
            raise InputError(f"{repo} already has a tag {tag}; choose the next version.")
        names, sums = _in_order(stage), read_sums(stage)
        kept = [name for name in names if same(stage / name, (there or {}).get(name), sums.get(name))]
        sent = [name for name in names if name not in kept]
        removed = sorted(set(there or {}) - set(names) - set(_HUBS_OWN))
        size = sum((stage / name).stat().st_size for name in sent)
        done = Published(repo, sent, kept, removed, size, None, None, tag)
        if dry_run:
            return done
        hub.create(private)
        commit = _send(hub, stage, sent, removed, size, progress)
        _check_arrived(hub, stage, names, sums)
        if tag is not None:  # also when a run before this one was cut between its last commit and the tag
            hub.tag(tag, commit or hub.head())
        return done._replace(commit=commit, url=hub.url)


def check_release(release: Path, progress: Progress = SILENT) -> None:
    """CheckFailed when the audit finds an error, or there are no checksums to prove the bytes."""
    findings = [found for found in audit(release, progress=progress) if found.severity == "error"]
    if findings:
        more = f" (and {len(findings) - 1} more; see `clefquant audit {release}`)" if len(findings) > 1 else ""
        raise CheckFailed(f"the audit fails: {findings[0].message}{more}")
    for name in (SUMS_FILE, FACTS_FILE, f"{PLUGIN_FOLDER}/pyproject.toml"):
        if not (release / name).is_file():
            raise CheckFailed(f"{name} is missing in {release}; write the release with `clefquant export`.")


def find_report(release: Path, report: Path | None) -> Path:
    """The verify report to go by; CheckFailed when there is none."""
    candidates = [report] if report is not None else [release / REPORT_FILE, release.resolve().parent / "report"]
    for path in candidates:
        found = path / "report.json" if path.is_dir() else path
        if found.is_file():
            return found
    raise CheckFailed(
        f"there is no verify report for {release}; run `clefquant verify {release} --against MODEL --eval SET "
        "--gate FILE --out DIR` and give --report DIR."
    )


def _check_gate(release: Path, path: Path) -> None:
    report = read_report(path)
    check_report(release, report)
    passed = gate_passed(report)
    if passed is None:
        raise CheckFailed(f"{path} was made without a gate; verify again with --gate FILE.")
    if not passed:
        raise CheckFailed(f"the gate of {path} failed: {'; '.join(failed_limits(report)[:3])}.")


@contextmanager
def _staged(release: Path) -> Iterator[Path]:
    """The release by links in a folder of its own, where the card can be completed without touching the original."""
    with tempfile.TemporaryDirectory(prefix="clefquant-publish-") as name:
        stage = Path(name)
        for relative in [*release_files(release), SUMS_FILE]:
            (stage / relative).parent.mkdir(parents=True, exist_ok=True)
            if (release / relative).suffix == ".safetensors":
                os.symlink((release / relative).resolve(), stage / relative)
            else:
                shutil.copyfile(release / relative, stage / relative)
        yield stage


def _in_order(stage: Path) -> list[str]:
    """Largest first, the card last."""
    names = [*release_files(stage), SUMS_FILE]
    return sorted(names, key=lambda name: (name == CARD_FILE, -(stage / name).stat().st_size, name))


def _send(hub: Hub, stage: Path, sent: list[str], removed: list[str], size: int, progress: Progress) -> str | None:
    """Two commits: everything but the card, then the card; returns the last one, None when nothing had to change."""
    first = [(name, stage / name) for name in sent if name != CARD_FILE]
    commit = None
    with progress.task("uploading", size, "bytes") as task:
        if first or removed:
            commit = hub.upload(first, removed, "Upload release", task)
        if CARD_FILE in sent:
            commit = hub.upload([(CARD_FILE, stage / CARD_FILE)], [], "Upload model card", task)
    return commit


def _check_arrived(hub: Hub, stage: Path, names: list[str], sums: dict[str, str]) -> None:
    """CheckFailed when the Hub holds other bytes than ``sums``, which the audit has read, says."""
    there: dict[str, Remote] = hub.files() or {}
    wrong = [name for name in names if not same(stage / name, there.get(name), sums.get(name))]
    if wrong:
        shown = ", ".join(wrong[:3])
        raise CheckFailed(f"{len(wrong)} files on the Hub are not the ones sent ({shown}); run the same command again.")
