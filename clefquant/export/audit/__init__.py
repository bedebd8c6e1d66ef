"""Auditing a checkpoint from its files alone: no GPU, no model code, numpy and headers only.

Reads any Clef or Qwen3.5 checkpoint in compressed-tensors, Quark or plain BF16 form, our own or somebody else's.
"""

from pathlib import Path

from clefquant.export.audit.config import check_config, check_quantization
from clefquant.export.audit.contents import check_contents
from clefquant.export.audit.files import check_files, check_sums
from clefquant.export.audit.finding import SEVERITIES, Finding
from clefquant.export.audit.folder import read_folder
from clefquant.export.audit.fused import fused_findings
from clefquant.export.audit.head import check_head
from clefquant.export.audit.index import check_index, check_layout
from clefquant.export.audit.modules import check_modules
from clefquant.export.audit.serving import check_ranks, check_serving
from clefquant.progress import SILENT, Progress

__all__ = ["Finding", "audit", "has_errors"]


def audit(path: Path, *, ranks: int = 1, progress: Progress = SILENT) -> list[Finding]:
    """Every finding about the folder, errors first. ``ranks``: also check that it divides over so many GPUs.

    Reads each weight file once. InputError when ``path`` is no folder; whatever is wrong inside is a finding.
    """
    folder = read_folder(path)
    quantization, findings = check_quantization(folder)
    findings = [*folder.findings, *findings]
    for check in (check_config, check_files, check_index, check_layout, check_head):
        findings += check(folder)
    findings += check_modules(folder, quantization)
    findings += fused_findings(folder.tensors)
    total = sum((path / name).stat().st_size for name in folder.shards)
    with progress.task("reading weights", total, "bytes") as task:
        digests, values = check_contents(folder, task)
    findings += values
    findings += check_sums(folder, digests)
    findings += check_ranks(folder, quantization, ranks)
    findings += check_serving(folder, quantization)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def has_errors(findings: list[Finding]) -> bool:
    """Whether any finding makes the release wrong or unloadable."""
    return any(finding.severity == "error" for finding in findings)
