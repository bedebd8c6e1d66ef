"""Filling in the card after verification, without losing the proof that the verified bytes are still there.

Putting the figures (or the repository's name) on the card changes ``README.md`` and with it ``SHA256SUMS``. A report
therefore names the release it measured by the checksums of everything else.
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clefquant.errors import CheckFailed, InputError
from clefquant.export.card import CARD_FILE, render_card
from clefquant.export.figures import report_figures
from clefquant.export.sums import SUMS_FILE, parse_sums, write_sums
from clefquant.release.artefact import write_text
from clefquant.release.headers import read_backbone
from clefquant.release.release import TABLES_FILE, open_release
from clefquant.verify.stored_report import RELEASE_KEY, REPORT_FILE, measured_sha256, read_report


def read_sums(folder: Path) -> dict[str, str]:
    """The checksums of a release. InputError when it has none."""
    try:
        return parse_sums((folder / SUMS_FILE).read_text(encoding="utf-8")).files
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{folder} has no readable {SUMS_FILE}; write the release with `clefquant export`.") from error


def check_report(folder: Path, report: dict[str, Any]) -> None:
    """CheckFailed when ``report`` was measured on other bytes than ``folder`` holds.

    A report that does not name the checksums is matched by the release's fingerprint, which does not cover int8 tables.
    """
    found, here = report.get(RELEASE_KEY), measured_sha256(folder)
    if not isinstance(found, str):
        found = (report.get("parents") or {}).get("candidate")
        if (folder / TABLES_FILE).is_file():
            raise CheckFailed(f"the report does not say which int8 tables it measured ({RELEASE_KEY}); verify again.")
        here = open_release(folder).fingerprint
    if found != here:
        raise CheckFailed(
            f"the report measured another release ({str(found)[:12]}…, here {str(here)[:12]}…); "
            "verify this release again."
        )


def complete_card(folder: Path, *, report: Path | None, repo: str | None, changes: Sequence[str] = ()) -> None:
    """Render the card again with the figures of ``report`` and the repository's name; update the sums.

    Called on a release that ``export`` wrote. Every other file keeps its bytes. ``changes``: against an earlier
    version.
    """
    before = read_sums(folder)
    figures = None
    stored = folder / REPORT_FILE
    if report is not None or stored.is_file():
        value = read_report(report or stored)
        check_report(folder, value)
        figures = report_figures(value)
    text = render_card(folder, read_backbone(folder), figures, repo, changes)
    if report is not None and report.resolve() != stored.resolve():
        shutil.copyfile(report, stored)
    write_text(folder / CARD_FILE, text)
    known = {name: digest for name, digest in before.items() if name not in (CARD_FILE, REPORT_FILE)}
    known[CARD_FILE] = hashlib.sha256(text.encode()).hexdigest()
    write_sums(folder, known)
