"""``report.json``: every number of a verification, in one value from which the pages are made."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clefquant.calibration.stored import StoredRecord, StoredSet
from clefquant.release.artefact import provenance, read_json
from clefquant.release.release import HEAD_FILE, TABLES_FILE, Release
from clefquant.verify.answers import Answer, AnswerFile
from clefquant.verify.backends import Candidate
from clefquant.verify.gates import GateFile, judge
from clefquant.verify.join import Asked, Pairs, asked_questions, join
from clefquant.verify.metrics import Measures, measure
from clefquant.verify.paired import paired_accuracy
from clefquant.verify.plot_data import kl_histogram, reliability
from clefquant.verify.reference import ONE_AT_A_TIME, OTHER_BATCHING
from clefquant.verify.stored_report import KIND, RELEASE_KEY, SCHEMA_VERSION, measured_sha256
from clefquant.verify.tables import Row, all_tables, row
from clefquant.verify.verdict import verdict
from clefquant.verify.worst import worst_questions

NOISE_NAMES = {OTHER_BATCHING: "BF16 again, other batches", ONE_AT_A_TIME: "BF16 again, one at a time"}


# Long: the report is one value, and this is its table of contents.
def make_report(
    release: Release,
    reference: AnswerFile,
    candidate: Candidate,
    sets: Mapping[str, StoredSet],
    records: Sequence[StoredRecord],
    gate: GateFile | None,
    frontier: dict[str, Any] | None,
    seed: int,
) -> tuple[dict[str, Any], Pairs, Measures]:
    """Join, measure, tabulate, judge: the report's value, and the questions it was made from."""
    asked = asked_questions(records)
    pairs = join(asked, reference.answers, candidate.answers)
    m = measure(pairs)
    tables = all_tables(pairs, m, seed)
    noise = [
        _noise_row(NOISE_NAMES[name], asked, reference.answers, again, seed)
        for name, again in reference.variants.items()
    ]
    served_noise = [
        _noise_row("This release again, one at a time", asked, candidate.answers, again, seed)
        for again in candidate.variants.values()
    ]
    paired = paired_accuracy(m)
    limits = judge(gate, tables) if gate else None
    failures = None if limits is None else [describe_failure(one) for one in limits if not one["passed"]]
    everything = tables["all"][0]
    parents = {"candidate": release.fingerprint, "reference": reference.head["origin"]["fingerprint"]}
    parents |= {f"set {name}": stored.fingerprint for name, stored in sets.items()}
    value = {
        **provenance(KIND, SCHEMA_VERSION, parents, seed),
        # what `export` checks before it puts these figures on a card
        RELEASE_KEY: measured_sha256(release.path),
        "candidate": {
            "name": release.path.resolve().name if release.reference != "nano" else "nano",
            "bytes": stored_bytes(release),
            "head_bytes": (release.path / HEAD_FILE).stat().st_size,
            "formats": _formats(release),
            "layout": _layout(release),
        },
        "reference": {
            "name": reference.head["model"].rstrip("/").rsplit("/", 1)[-1],
            "bytes": reference.head["backbone_bytes"],
            **{key: reference.head["origin"][key] for key in ("dtype", "device", "batch_tokens")},
            "versions": reference.head["versions"],
        },
        "sets": [
            {"name": name, "records": len(stored), "tokens": stored.tokens, "split": stored.header.get("split")}
            for name, stored in sets.items()
        ],
        "backend": candidate.backend,
        "verdict": verdict(everything, noise, *paired, failures)._asdict(),
        "paired": paired._asdict(),
        "gate": None if gate is None else {"judge": gate.judge, "limits": limits},
        "tables": tables,
        "noise": noise,
        "served_noise": served_noise,
        "performance": candidate.performance,
        "plots": {"kl": kl_histogram(m), "reliability": reliability(m), "frontier": frontier},
        "worst": worst_questions(pairs, m, records, candidate.answers),
    }
    return value, pairs, m


def _noise_row(name: str, asked: Sequence[Asked], answers: Sequence[Answer], again: Sequence[Answer], seed: int) -> Row:
    """A row of a model against itself over the questions that were answered again."""
    keys = {answer.key for answer in again}
    chosen = [one for one in asked if (one.record, one.question) in keys]
    pairs = join(chosen, [answer for answer in answers if answer.key in keys], again)
    m = measure(pairs)
    return row(name, pairs, m, np.ones(len(chosen), bool), seed, "noise")


def describe_failure(limit: Mapping[str, Any]) -> str:
    """A failed limit as a sentence."""
    found = "undefined" if limit["found"] is None else f"{limit['found']:.6g}"
    why = f" ({limit['why']})" if limit["why"] else ""
    return f"{limit['row']}: {limit['limit']} — found {found}{why}."


def stored_bytes(release: Release) -> int:
    """Bytes of the backbone as stored, int8 tables included; the head is the same everywhere and left out."""
    tables = release.path / TABLES_FILE
    return release.backbone_bytes + (tables.stat().st_size if tables.is_file() else 0)


def _formats(release: Release) -> dict[str, int]:
    """Quantized linears per stored format, by compressed-tensors' names."""
    groups = (release.quantization or {}).get("config_groups", {})
    found: dict[str, int] = {}
    for group in groups.values():
        name = str(group.get("format") or (release.quantization or {}).get("format"))
        found[name] = found.get(name, 0) + len(group.get("targets", ()))
    return found


def _layout(release: Release) -> dict[str, str] | None:
    path = release.path / "layout.json"
    if not path.is_file():
        return None
    units: dict[str, str] = read_json(path, "layout", 1)["units"]
    return units
