"""``report.md``: tables to paste into a model card, in the form the published cards use."""

from collections.abc import Mapping, Sequence
from typing import Any

from clefquant.verify.words import engine, interval, share, small, table

Report = Mapping[str, Any]
_SECTIONS = {"types": "question type", "lengths": "input length"}


def markdown(report: Report) -> str:
    """The whole page."""
    name, base = report["candidate"]["name"], report["reference"]["name"]
    tables, parts = report["tables"], [f"# {name} against {base}\n", f"**{report['verdict']['headline']}**\n"]
    parts += ["".join(f"- {reason}\n" for reason in report["verdict"]["reasons"])]
    parts += ["## Accuracy and agreement with BF16\n", _groups(tables), _legend(report)]
    parts += ["## Noise floor\n", _noise([*report["noise"], *report["served_noise"]])]
    for title, key in (("Type", "types"), ("Tokens", "lengths")):
        parts += [f"## By {_SECTIONS[key]}\n", _compact(tables[key], title)]
    parts += ["## By BF16 margin\n", _margins(tables["margins"])]
    parts += ["## Probabilities\n", _probabilities(tables["all"][0])]
    if report["performance"]:
        parts += ["## Speed\n", performance_tables(report["performance"])]
    if report["gate"]:
        parts += ["## Gate\n", _gate(report["gate"])]
    parts += ["## How it was measured\n", _method(report)]
    return "\n".join(parts)


def _groups(tables: Mapping[str, Any]) -> str:
    rows = [*tables["groups"], *tables["all"]]
    header = ("Task", "Records", "Questions", "BF16 acc", "Acc", "Agree", "Agree 95 %", "KL", "TV", "Confident flips")
    return table(
        header,
        [
            (
                row["name"], f"{row['records']:,}", f"{row['questions']:,}", share(row["accuracy_reference"]),
                share(row["accuracy"]), share(row["agreement"]), interval(row["agreement"]), small(row["kl"]),
                small(row["tv"]), f"{row['confident_flips']:,}",
            )
            for row in rows
        ],
    )  # fmt: skip


def _legend(report: Report) -> str:
    sets = ", ".join(f"{one['name']} ({one['records']:,} records, {one['tokens']:,} tokens)" for one in report["sets"])
    return (
        f"Evaluation: {sets}. Accuracy is against gold labels; agree is top-1 agreement with BF16; KL is mean "
        "KL(BF16 ‖ this model) in nats and TV the total-variation distance, both per question; a confident flip is a "
        "changed answer where BF16 led by more than 20 points. Intervals: 95 %, bootstrap over records.\n"
    )


def _noise(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ("Run", "Questions", "Agree", "KL", "Largest KL", "TV"),
        [
            (
                row["name"],
                f"{row['questions']:,}",
                share(row["agreement"], 2),
                small(row["kl"]),
                f"{row['kl_max'] or 0:.1e}",
                small(row["tv"]),
            )
            for row in rows
        ],
    )


def _compact(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    return table(
        (title, "Questions", "BF16 acc", "Acc", "Agree", "KL", "TV"),
        [
            (
                row["name"], f"{row['questions']:,}", share(row["accuracy_reference"]), share(row["accuracy"]),
                share(row["agreement"]), small(row["kl"]), small(row["tv"]),
            )
            for row in rows
        ],
    )  # fmt: skip


def _margins(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ("BF16 margin", "Questions", "Agree", "KL", "Flips", "Flips predicted by margin"),
        [
            (
                row["name"],
                f"{row['questions']:,}",
                share(row["agreement"]),
                small(row["kl"]),
                f"{row['flips']:,}",
                f"{row['flips_predicted']:.1f}",
            )
            for row in rows
        ],
    )


def _probabilities(row: Mapping[str, Any]) -> str:
    found = [
        (label, small(row[f"{name}_reference"]), small(row[name]), interval(row[f"{name}_change"], 1, 4))
        for label, name in (("NLL", "nll"), ("Brier", "brier"), ("ECE (15 bins)", "ece"))
        if row[name]
    ]
    text = table(("Measure", "BF16", "This model", "Change 95 %"), found) if found else ""
    more = f"Mean largest change of a probability: {small(row['max_dp'])}."
    if row["score_change"]:
        more += f" Mean change of the expected level of score questions: {small(row['score_change'])}."
    return f"{text}\n{more}\n"


def performance_tables(speed: Mapping[str, Any]) -> str:
    """Throughput and latency of a backend that really ran."""
    whole = speed["throughput"]
    text = f"{engine(speed)}. {whole['concurrency']}: {whole['records_per_s']:,} records/s, "
    text += f"{whole['tokens_per_s']:,} tokens/s"
    rows = [
        (
            one["tokens"],
            f"{one['median_tokens']:,}",
            f"{one['requests']}",
            f"{one['p50_ms']:.1f}",
            f"{one['p95_ms']:.1f}",
        )
        for one in speed["latency"]
    ]
    return f"{text}.\n\n" + table(("Tokens", "Median tokens", "Requests", "p50 ms", "p95 ms"), rows)


def _gate(gate: Mapping[str, Any]) -> str:
    rows = [
        (
            one["row"],
            one["limit"],
            "–" if one["found"] is None else f"{one['found']:.6g}",
            "kept" if one["passed"] else f"FAILED {one['why']}".strip(),
        )
        for one in gate["limits"]
    ]
    return table(("Rows", "Limit", "Found", "Result"), rows)


def _method(report: Report) -> str:
    backend, base = report["backend"], report["reference"]
    speed = "" if report["performance"] else " Nothing was served, so no speed is given."
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return (
        f"Candidate: {engine(backend)}.{speed} Reference: {base['name']} in transformers, computed in "
        f"{base['dtype']} on {base['device']}. "
        f"Made with {versions}; seed {report['seed']}. Every question is in `questions.parquet`.\n"
    )
