"""The probe: a record with stored reference logits, answered once at start.

clefquant_probe.json: {"schema_version": 1, "records": [record, ...], "logits": [{question: {option: logit}}, ...],
"tolerance": t}. With a single record, `logits` may be that record's object itself. Compared are probabilities, because
logits of a question are only defined up to a constant.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from clef_vllm.release import ReleaseError

SCHEMA_VERSION = 1
Logits = dict[str, dict[str, float]]


class Probe(NamedTuple):
    records: list[dict[str, Any]]
    logits: list[Logits]
    tolerance: float


def read_probe(path: Path) -> Probe:
    """Read and check a probe file; ReleaseError says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version, records, logits = data["schema_version"], data["records"], data["logits"]
        tolerance = float(data["tolerance"])
        logits = logits if isinstance(logits, list) else [logits]
        if version != SCHEMA_VERSION:
            raise ReleaseError(
                f"{path} has schema version {version}, this plugin reads {SCHEMA_VERSION}; update clef-vllm"
            )
        if not records or len(records) != len(logits) or tolerance <= 0:
            raise ReleaseError(
                f"{path} has {len(records)} records, {len(logits)} sets of logits and tolerance {tolerance}; one set "
                f"per record and a tolerance above 0 are needed; export the release again"
            )
    except (KeyError, TypeError, ValueError) as error:
        raise ReleaseError(f"{path} is not a probe file ({error!r}); export the release again") from error
    return Probe(records, logits, tolerance)


def largest_difference(expected: Logits, found: Logits) -> float:
    """max |Δp| over all options; infinite where questions or options differ or a value is not finite."""
    if {q: set(o) for q, o in expected.items()} != {q: set(o) for q, o in found.items()}:
        return float("inf")
    worst = 0.0
    for question, options in expected.items():
        names = list(options)
        a = torch.tensor([options[name] for name in names], dtype=torch.float64).softmax(-1)
        b = torch.tensor([found[question][name] for name in names], dtype=torch.float64).softmax(-1)
        difference = float((a - b).abs().max())
        # NaN compares false with everything and would pass every threshold.
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def run_probe(path: Path | None, answer: Callable[[list[dict[str, Any]]], list[Logits]]) -> str:
    """Answer the probe and compare. Returns a line for the log; ReleaseError if it does not match."""
    if path is None:
        return "clef-vllm: the release has no probe (clefquant_probe.json): its answers were not checked at start"
    probe = read_probe(path)
    worst = max(map(largest_difference, probe.logits, answer(probe.records)))
    if worst > probe.tolerance:
        raise ReleaseError(
            f"the probe of {path.parent} does not match: probabilities differ by {worst:.4f}, allowed "
            f"{probe.tolerance:g}. Weights, plugin or kernels are not those the release was verified with; download "
            f"the release again, and if it persists verify it on this device"
        )
    return f"clef-vllm: probe matches, max |Δp| {worst:.4f} (allowed {probe.tolerance:g})"
