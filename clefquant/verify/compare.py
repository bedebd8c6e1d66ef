"""Several reports side by side: one column per report, figures with their intervals, by group, and a note on what
differs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefquant.errors import InputError
from clefquant.release.artefact import check_new_folder, new_folder, provenance, sha256_json, write_json, write_text
from clefquant.verify.html import comparison_html, size
from clefquant.verify.stored_report import read_report
from clefquant.verify.words import interval, share, small, table

KIND = "verify comparison"
SCHEMA_VERSION = 1

Row = Mapping[str, Any]
Spell = Callable[[Row], str]

#: Line of the comparison to how it is read from the row of all questions.
FIGURES: tuple[tuple[str, Spell], ...] = (
    ("Same answer as BF16 %", lambda row: f"{share(row['agreement'], 2)} ({interval(row['agreement'], 100, 2)})"),
    ("without near ties %", lambda row: share(row["agreement_clear"], 2)),
    ("Mean KL, nats", lambda row: f"{small(row['kl'])} ({interval(row['kl'], 1, 4)})"),
    ("99th percentile of KL", lambda row: "–" if row["kl_p99"] is None else f"{row['kl_p99']:.4f}"),
    ("Mean TV", lambda row: small(row["tv"])),
    ("Confident answers changed", lambda row: f"{row['confident_flips']:,} of {row['confident']:,}"),
    ("Accuracy %", lambda row: share(row["accuracy"], 2)),
    ("Accuracy of BF16 %", lambda row: share(row["accuracy_reference"], 2)),
    ("Change of accuracy, points", lambda row: interval(row["accuracy_change"])),
    ("NLL", lambda row: small(row["nll"])),
    ("ECE", lambda row: small(row["ece"])),
    ("Questions without a finite answer", lambda row: f"{row['nan']:,}"),
)


@dataclass(frozen=True)
class Comparison:
    """Where it was written. ``differences``: what makes the reports less than comparable, as sentences."""

    value: dict[str, Any]
    json: Path
    markdown: Path
    html: Path
    differences: list[str]


def compare(paths: Sequence[Path], out: Path) -> Comparison:
    """Put reports (folders or ``report.json`` files) side by side in the new folder ``out``."""
    if len(paths) < 2:
        raise InputError("compare needs at least two reports; give the folders that `clefquant verify` wrote.")
    check_new_folder(out)
    reports = [read_report(path) for path in paths]
    names = _names(reports, paths)
    differences = _differences(reports, names)
    lines = _lines(reports)
    groups = list(dict.fromkeys(row["name"] for report in reports for row in report["tables"]["groups"]))
    sections = [
        _by_group("Same answer by group, %", "agreement", lambda figure: share(figure, 2), groups, reports),
        _by_group("Mean KL by group", "kl", small, groups, reports),
        _by_group("Accuracy by group, %", "accuracy", share, groups, reports),
    ]
    value = {
        **provenance(KIND, SCHEMA_VERSION, {name: sha256_json(one) for name, one in zip(names, reports, strict=True)}),
        "names": names,
        "differences": differences,
        "lines": lines,
        "sections": sections,
    }
    with new_folder(out) as work:
        write_json(work / "compare.json", value)
        write_text(work / "compare.md", _markdown(value))
        write_text(work / "compare.html", comparison_html(value))
    return Comparison(value, out / "compare.json", out / "compare.md", out / "compare.html", differences)


def _names(reports: Sequence[Row], paths: Sequence[Path]) -> list[str]:
    """Names of the candidates, with the report's folder where two are alike: its name, or its path when that is too."""
    names = [str(report["candidate"]["name"]) for report in reports]
    folders = [(path.parent if path.is_file() else path).resolve() for path in paths]
    spelled = [folder.name if [f.name for f in folders].count(folder.name) == 1 else str(folder) for folder in folders]
    return [name if names.count(name) == 1 else f"{name} ({where})" for name, where in zip(names, spelled, strict=True)]


def _differences(reports: Sequence[Row], names: Sequence[str]) -> list[str]:
    found = []
    for what, key in (
        ("evaluation sets", lambda report: sorted(v for k, v in report["parents"].items() if k.startswith("set "))),
        ("BF16 references", lambda report: report["parents"]["reference"]),
        (
            "compute dtypes or devices of BF16",
            lambda report: (report["reference"]["dtype"], report["reference"]["device"]),
        ),
    ):
        first = key(reports[0])
        if others := [name for name, report in zip(names, reports, strict=True) if key(report) != first]:
            found.append(
                f"{', '.join(others)} and {names[0]} have different {what}: their figures do not compare directly."
            )
    return found


def _lines(reports: Sequence[Row]) -> list[list[str]]:
    """Each line: its name, then one cell per report."""
    lines = [
        ["Verdict", *(report["verdict"]["headline"] for report in reports)],
        ["Size", *(size(report["candidate"]["bytes"]) for report in reports)],
        ["Backend", *(report["backend"]["engine"] for report in reports)],
        ["Questions", *(f"{report['tables']['all'][0]['questions']:,}" for report in reports)],
    ]
    lines += [[name, *(spell(report["tables"]["all"][0]) for report in reports)] for name, spell in FIGURES]
    if any(report["performance"] for report in reports):
        lines.append(["Tokens a second", *(_speed(report["performance"]) for report in reports)])
    return lines


def _speed(performance: Row | None) -> str:
    return "not served" if performance is None else f"{performance['throughput']['tokens_per_s']:,}"


def _by_group(
    title: str, figure: str, spell: Callable[[Any], str], groups: Sequence[str], reports: Sequence[Row]
) -> dict[str, Any]:
    tables = [{row["name"]: row for row in report["tables"]["groups"]} for report in reports]
    return {
        "title": title,
        "lines": [
            [group, *(spell(rows[group][figure]) if group in rows else "–" for rows in tables)] for group in groups
        ],
    }


def _markdown(value: Row) -> str:
    parts = ["# Releases compared\n", *(f"> {difference}\n" for difference in value["differences"])]
    parts.append(table(["", *value["names"]], value["lines"]))
    for section in value["sections"]:
        parts += [f"## {section['title']}\n", table(["Group", *value["names"]], section["lines"])]
    return "\n".join(parts)
