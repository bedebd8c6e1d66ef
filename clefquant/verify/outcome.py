"""What a verification is told and what it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clefquant.errors import CheckFailed
from clefquant.release.load import DEFAULT_BATCH_TOKENS
from clefquant.verify.chunks import Shard
from clefquant.verify.report import describe_failure


@dataclass(frozen=True)
class Options:
    """What rarely changes.

    ``python``: of the serving environment, and ``engine``: keyword arguments of its ``ClefVLLM``, for the vllm backend.
    ``key_file``: its first line is the bearer token of a server that wants one.
    ``shard``: (this worker, workers). ``ray``: ``auto`` or a cluster's address, to spread BF16 and the simulated
    candidate over Ray. ``restart``: discard what an earlier run left in the output folder. ``sensitivity``: result
    folder of a sweep, for the frontier plot.
    """

    device: torch.device | None = None
    batch_tokens: int = DEFAULT_BATCH_TOKENS
    seed: int = 0
    python: Path | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    key_file: Path | None = None
    shard: Shard = (0, 1)
    ray: str | None = None
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
