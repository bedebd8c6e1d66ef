"""The files beside the weights of a repaired copy: what is taken over, what is written out, their checksums."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clefquant.errors import InputError
from clefquant.export.audit.folder import AuditFolder
from clefquant.export.audit.quantization import inferred_format
from clefquant.export.audit.schemes import COMPRESSED, QUARK
from clefquant.export.marker import add_marker
from clefquant.export.sums import SUMS_FILE, release_files, write_sums
from clefquant.export.verified import read_sums
from clefquant.release.artefact import sha256_file, write_json, write_text
from clefquant.release.release import HEAD_CONFIG_FILE, HEAD_FOLDER, INDEX_FILE, MARKER
from clefquant.verify.stored_report import REPORT_FILE


def side_files(folder: AuditFolder, work: Path, shards: set[str], dropped: set[str], actions: list[str]) -> None:
    """Copy everything but ``shards``, outdated reports and what another save left; add a marker that is missing."""
    stale = dropped | {
        file.name
        for pattern in ("*.partial", ".*.partial", "*.incomplete", "pytorch_model*", "consolidated*")
        for file in folder.path.glob(pattern)
    }
    actions += [f"{name} of another save was left out" for name in sorted(stale)]
    elsewhere = stale | shards | {INDEX_FILE, REPORT_FILE}
    for name in release_files(folder.path):
        if name not in elsewhere and not (work / name).exists():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder.path / name, work / name)
    if folder.tables is not None and folder.head_config is not None and MARKER not in folder.head_config:
        name = HEAD_CONFIG_FILE if (work / HEAD_CONFIG_FILE).is_file() else f"{HEAD_FOLDER}/{HEAD_CONFIG_FILE}"
        write_text(work / name, add_marker((work / name).read_text(encoding="utf-8")))
        actions.append(f"{name} got the marker {MARKER}")


def written_out(folder: AuditFolder, work: Path, actions: list[str]) -> None:
    """Write formats out and drop what vLLM cannot parse; the file keeps its bytes when there is nothing to change."""
    config: dict[str, Any] = json.loads(json.dumps(folder.config))
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return
    if quantization.get("quant_method") == QUARK and quantization.get("algo_config") is not None:
        quantization["algo_config"] = None
        actions.append("config.json: algo_config set to null")
    groups = quantization.get("config_groups")
    if quantization.get("quant_method") == COMPRESSED and isinstance(groups, dict):
        top = quantization.get("format")
        for name, group in groups.items():
            if isinstance(group, dict) and not isinstance(group.get("format"), str) and group.get("weights"):
                group["format"] = top if top not in (None, "mixed-precision") else inferred_format(group["weights"])
                actions.append(f"config.json: {name} got the format {group['format']}")
        formats = {group.get("format") for group in groups.values() if isinstance(group, dict)}
        wanted = formats.pop() if len(formats) == 1 else "mixed-precision"
        if top != wanted and (top is None or len(groups) > 1 or top == "mixed-precision"):
            quantization["format"] = wanted
            actions.append(f"config.json: format is now {wanted}")
    if config != folder.config:
        write_json(work / "config.json", config)


def new_sums(folder: AuditFolder, work: Path, known: Mapping[str, str], actions: list[str]) -> None:
    """New checksums; ``actions`` say which are not those the source lists, and which files never agreed with theirs."""
    new = write_sums(work, known)
    try:
        old = read_sums(folder.path)
    except InputError:
        actions.append(f"{SUMS_FILE} was written")
        return
    edited = [
        name
        for name, digest in old.items()
        if name in new and new[name] != digest and sha256_file(folder.path / name) == new[name]
    ]
    if edited:
        actions.append(
            f"{', '.join(edited)}: the bytes are not those {SUMS_FILE} listed, and were taken as they are; "
            "compare them with the source before you trust the copy"
        )
    if changed := sorted(name for name in new if new[name] != old.get(name) and name not in edited):
        actions.append(f"{SUMS_FILE}: new checksums for {', '.join(changed)}")
