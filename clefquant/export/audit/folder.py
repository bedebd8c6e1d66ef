"""A checkpoint folder read for auditing: every readable part, and a finding for every part that is not.

Unlike :func:`clefquant.release.release.open_release` nothing here raises for a damaged folder.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clefquant.errors import InputError
from clefquant.export.audit.finding import Finding, error
from clefquant.release.headers import TensorInfo, read_header, read_weight_map
from clefquant.release.release import CODE_FILE, HEAD_CONFIG_FILE, HEAD_FILE, HEAD_FOLDER, INDEX_FILE, TABLES_FILE

PROBE_FILE = "clefquant_probe.json"
#: How a Git LFS pointer begins.
POINTER = b"version https://git-lfs"


@dataclass
class AuditFolder:
    """What is in the folder. ``shards``: tensors by backbone file; ``index``: the weight map, None without an index."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    index: dict[str, str] | None = None
    index_bytes: int | None = None
    shards: dict[str, dict[str, TensorInfo]] = field(default_factory=dict)
    head_file: str | None = None
    head: dict[str, TensorInfo] = field(default_factory=dict)
    head_config: dict[str, Any] | None = None
    tables: dict[str, TensorInfo] | None = None
    unread: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Backbone tensors as a server loads them: of the shards the index names, or of all."""
        named = set(self.index.values()) if self.index is not None else set(self.shards)
        return {name: info for file, held in self.shards.items() if file in named for name, info in held.items()}

    @property
    def text(self) -> dict[str, Any]:
        """``text_config``, or an empty object."""
        found = self.config.get("text_config")
        return found if isinstance(found, dict) else {}

    @property
    def is_clef(self) -> bool:
        """Whether any part of a joint head is there; a Qwen3.5 backbone alone has none."""
        names = (HEAD_FILE, HEAD_CONFIG_FILE, CODE_FILE, HEAD_FOLDER)
        return "clefquant" in self.config or any((self.path / name).exists() for name in names)

    @property
    def quantization(self) -> dict[str, Any] | None:
        """``quantization_config``."""
        found = self.config.get("quantization_config")
        return found if isinstance(found, dict) else None


def read_folder(path: Path) -> AuditFolder:
    """Read headers, index and configurations. InputError when ``path`` is no folder."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; audit takes the folder of a release or checkpoint.")
    folder = AuditFolder(path)
    folder.config = _object(folder, "config.json", required=True) or {}
    _read_index(folder)
    for file in sorted(path.glob("*.safetensors")):
        tensors = _header(folder, file)
        if file.name.startswith("joint_head"):
            folder.head_file, folder.head = file.name, tensors
        else:
            folder.shards[file.name] = tensors
    if folder.head_file is None and (path / HEAD_FOLDER / HEAD_FILE).exists():
        folder.head_file = f"{HEAD_FOLDER}/{HEAD_FILE}"
        folder.head = _header(folder, path / folder.head_file)
    folder.head_config = _object(folder, HEAD_CONFIG_FILE) or _object(folder, f"{HEAD_FOLDER}/{HEAD_CONFIG_FILE}")
    if (path / TABLES_FILE).exists():
        folder.tables = _header(folder, path / TABLES_FILE)
    return folder


def _read_index(folder: AuditFolder) -> None:
    index = _object(folder, INDEX_FILE)
    if index is None:
        return
    try:
        weight_map = read_weight_map(index)
    except ValueError:
        folder.findings.append(
            error("index", "the index has no weight_map from tensor to file", "clefquant audit --repair", INDEX_FILE)
        )
        return
    folder.index = weight_map
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    folder.index_bytes = size if isinstance(size, int) else None


def _object(folder: AuditFolder, name: str, required: bool = False) -> dict[str, Any] | None:
    file = folder.path / name
    if not file.is_file():
        if required:
            folder.findings.append(error("missing-file", f"{name} is missing", "download the release again", name))
        return None
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        folder.findings.append(error("unreadable", f"{name} is not JSON: {fault}", "download or write it again", name))
        return None
    if not isinstance(value, dict):
        folder.findings.append(error("unreadable", f"{name} holds no JSON object", "download or write it again", name))
        return None
    return value


def _header(folder: AuditFolder, file: Path) -> dict[str, TensorInfo]:
    name = file.relative_to(folder.path).as_posix()
    try:
        with file.open("rb") as handle:
            if handle.read(len(POINTER)) == POINTER:
                message = f"{name} is a Git LFS pointer of {file.stat().st_size} bytes, not weights"
                folder.findings.append(error("lfs-pointer", message, "fetch the weights with `git lfs pull`", name))
                folder.unread.add(name)
                return {}
        return read_header(file)
    except (InputError, OSError) as fault:
        folder.findings.append(error("truncated", str(fault), "download or write the file again", name))
        folder.unread.add(name)
        return {}
