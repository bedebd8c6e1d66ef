"""Assembling a release folder from a quantized checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from clefquant.errors import InputError
from clefquant.export.audit.folder import PROBE_FILE
from clefquant.export.audit.fused import fused_findings
from clefquant.export.card import CARD_FILE, CONFIG_FILE, FACTS_FILE, HUB_ID, card_facts, render_card
from clefquant.export.plugin import PLUGIN_FOLDER, copy_plugin, plugin_source
from clefquant.export.sums import SUMS_FILE, sums_sha256, write_sums
from clefquant.export.verified import complete_card, read_sums
from clefquant.progress import SILENT, Progress
from clefquant.release.artefact import check_new_folder, new_folder, read_json, write_json, write_text
from clefquant.release.release import HEAD_FOLDER, Release, open_release
from clefquant.release.shards import check_space, copy_side_files, write_shards
from clefquant.verify.stored_report import REPORT_FILE

DEFAULT_SHARD_BYTES = 5 * 10**9
#: Written anew or belonging to the place the checkpoint came from, never copied.
_NOT_COPIED = (CARD_FILE, SUMS_FILE, FACTS_FILE, REPORT_FILE, ".gitattributes", ".gitignore")


class Exported(NamedTuple):
    """``sums_sha256``: sha256 of ``SHA256SUMS``, the release's name by its bytes; ``bytes``: of all files."""

    path: Path
    sums_sha256: str
    files: int
    bytes: int


def export_release(
    checkpoint: Path,
    out: Path,
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    config: Path | None = None,
    probe: dict[str, Any] | None = None,
    report: Path | None = None,
    calibration: Path | None = None,
    base_model: str | None = None,
    repo: str | None = None,
    progress: Progress = SILENT,
) -> Exported:
    """Write the release folder ``out`` from the quantized ``checkpoint``; whole or not at all.

    ``config``: stored as ``clefquant.yaml``. ``probe``: stored as ``clefquant_probe.json``. ``report``: a verify
    report of the same release without figures (an export repeats byte for byte, so verify first and export again);
    its figures go on the card. ``calibration``: the set, whose sources the card lists. ``base_model``: Hub id of the
    BF16 release, by default the id the checkpoint was made from. ``repo``: where it will be published.
    """
    release = open_release(checkpoint)
    check_new_folder(out)
    _check(release, base_model, repo)
    plugin_source()
    sides = [file for file in release.side_files if file.name not in _NOT_COPIED]
    check_space(out, release.backbone_bytes + sum(file.stat().st_size for file in sides))
    facts = _facts(release, calibration, base_model)
    with new_folder(out) as work:
        copy_side_files(sides, work)
        if (release.path / HEAD_FOLDER).is_dir():
            shutil.copytree(release.path / HEAD_FOLDER, work / HEAD_FOLDER, copy_function=shutil.copyfile)
        with progress.task("writing shards", release.backbone_bytes, "bytes") as task:
            digests = write_shards(work, release.tensors, max_shard_bytes, task)
        copy_plugin(work)
        if config is not None:
            write_text(work / CONFIG_FILE, config.read_text(encoding="utf-8"))
        if probe is not None:
            write_json(work / PROBE_FILE, probe)
        write_json(work / FACTS_FILE, facts)
        write_text(work / CARD_FILE, render_card(work, release.tensors, None, None))
        write_sums(work, digests)
        if report is not None or repo is not None:
            complete_card(work, report=report, repo=repo)
        files = read_sums(work)
        total = sum((work / name).stat().st_size for name in files)
    return Exported(out, sums_sha256(files), len(files) + 1, total)


def _check(release: Release, base_model: str | None, repo: str | None) -> None:
    if release.quantization is None:
        raise InputError(f"{release.path} is not quantized; make a checkpoint with `clefquant quantize` first.")
    for option, value in (("--base-model", base_model), ("--repo", repo)):
        if value is not None and not HUB_ID.fullmatch(value):
            raise InputError(f"{option} is {value!r}; a Hub id has the form ORG/NAME.")
    faults = fused_findings(release.tensors)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InputError(
            f"{faults[0].message}{more}. Quantize again, or repair the checkpoint: "
            f"clefquant audit {release.path} --repair --out DIR"
        )
    if (release.path / PLUGIN_FOLDER).is_dir():
        raise InputError(
            f"{release.path} has {PLUGIN_FOLDER}/: it is a release already. Give the checkpoint it was exported from."
        )


def _facts(release: Release, calibration: Path | None, base_model: str | None) -> dict[str, Any]:
    path = release.path / "checkpoint.json"
    checkpoint = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    model = str(checkpoint.get("model", release.path.name))
    if base_model is None and HUB_ID.fullmatch(model) and not Path(model).exists():
        base_model = model
    header = read_json(calibration / "set.json", "calibration set", 1) if calibration is not None else None
    source_bytes = checkpoint.get("bytes", {}).get("source")
    name = model if HUB_ID.fullmatch(model) or "/" not in model else Path(model).name
    return card_facts(model=name, base_model=base_model, calibration=header, source_bytes=source_bytes)


def read_probe(path: Path) -> dict[str, Any]:
    """A probe file: records, their reference logits, a tolerance. InputError when it is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a probe: {error}") from error
    if not isinstance(value, dict) or not {"schema_version", "records", "logits", "tolerance"} <= set(value):
        raise InputError(f"{path} is no probe; it needs schema_version, records, logits and tolerance.")
    return value
