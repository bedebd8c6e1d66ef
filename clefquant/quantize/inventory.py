"""Where every source tensor went: kept unchanged or quantized. Nothing is ever lost without a word."""

from pathlib import Path
from typing import Any

from clefquant.release.headers import read_backbone
from clefquant.release.release import Release


def inventory(release: Release, checkpoint: Path) -> dict[str, Any]:
    """Counts and bytes of kept and quantized tensors of ``checkpoint``; asserts that none of the source is missing.

    Returns ``{"tensors": {"kept", "quantized"}, "bytes": {"source", "checkpoint"}}``.
    """
    stored = read_backbone(checkpoint)
    kept = [name for name in release.tensors if name in stored and stored[name].dtype == release.tensors[name].dtype]
    quantized = sorted(release.tensors.keys() - kept)
    for name in quantized:
        assert f"{name}_scale" in stored, f"{name} is neither kept nor quantized"
    return {
        "tensors": {"kept": len(kept), "quantized": len(quantized)},
        "bytes": {"source": release.backbone_bytes, "checkpoint": sum(info.bytes for info in stored.values())},
    }
