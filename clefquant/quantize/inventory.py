"""Where every source tensor went: kept, quantized, or changed by an algorithm that says so. Nothing is ever lost
without a word.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clefquant.release.headers import read_backbone
from clefquant.release.release import Release


def inventory(release: Release, checkpoint: Path, changed: Mapping[str, str]) -> dict[str, Any]:
    """Counts and bytes of kept, changed and quantized tensors of ``checkpoint``; asserts that none of the source is
    missing. ``changed``: tensors that may differ from the source though they are not quantized, with the reason.

    Returns ``{"tensors": {"kept", "changed", "quantized"}, "changed": {name: reason}, "bytes": {"source",
    "checkpoint"}}``.
    """
    stored = read_backbone(checkpoint)
    kept = [name for name in release.tensors if name in stored and stored[name].dtype == release.tensors[name].dtype]
    quantized = sorted(release.tensors.keys() - kept)
    for name in quantized:
        assert f"{name}_scale" in stored, f"{name} is neither kept nor quantized"
    assert changed.keys() <= set(kept)
    return {
        "tensors": {"kept": len(kept) - len(changed), "changed": len(changed), "quantized": len(quantized)},
        "changed": dict(changed),
        "bytes": {"source": release.backbone_bytes, "checkpoint": sum(info.bytes for info in stored.values())},
    }
