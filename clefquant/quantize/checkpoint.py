"""A quantized checkpoint: the source release with some linears replaced, everything else byte for byte as it was."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clefquant.progress import SILENT, Progress
from clefquant.quantize.finishing import QuantizedUnit, owned_units
from clefquant.quantize.inventory import inventory
from clefquant.quantize.ranks import of_first, ranks
from clefquant.quantize.remarks import headroom, remarks
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.quantize.statistics import KIND as STATISTICS_KIND
from clefquant.quantize.statistics import SCHEMA_VERSION as STATISTICS_SCHEMA
from clefquant.quantize.statistics import InputStatistics, write_statistics
from clefquant.quantize.unfinished import Unfinished
from clefquant.quantize.writer import DEFAULT_SHARD_BYTES, ShardWriter, lay_out, planned
from clefquant.recipes.awq import changed_by, changed_tensors
from clefquant.recipes.config import quantization_config, recipe_yaml
from clefquant.recipes.formats import BF16
from clefquant.recipes.layout import Layout, quantized_linears
from clefquant.release.artefact import check_new_folder, new_folder, provenance, write_json, write_text
from clefquant.release.release import Release
from clefquant.release.shards import Entry, copy_side_files

KIND = "checkpoint"
SCHEMA_VERSION = 1
#: The oldest clef-vllm that serves what this version writes.
MINIMUM_PLUGIN_VERSION = "0.1.0"


def write_checkpoint(
    release: Release,
    layout: Layout,
    results: Iterable[QuantizedUnit],
    out: Path,
    *,
    algorithm: str = "rtn",
    scales: Scales = DEFAULT_SCALES,
    calibration_sha256: str | None = None,
    other_inputs: Mapping[str, InputStatistics] | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    unfinished: Unfinished | None = None,
    progress: Progress = SILENT,
) -> Path:
    """Write the checkpoint of ``results`` (one per unit, in any order) into the new folder ``out``, unit by unit.

    What is neither quantized nor changed by the algorithm is copied byte for byte. The folder appears when it is
    complete. ``results`` may leave out the layers that ``unfinished`` has finished. ``algorithm``, ``scales``: what
    made them. ``other_inputs``: statistics on other data, for headroom.
    """
    check_new_folder(out)
    statistics = {} if unfinished is None else unfinished.statistics
    with new_folder(out) if unfinished is None else unfinished.folder() as work:
        changed = changed_by(algorithm, release.units, layout.units)
        _write_tensors(release, layout, results, changed, work, max_shard_bytes, statistics, unfinished, progress)
        if ranks().first:
            copy_side_files(release.side_files, work)
            write_json(work / "config.json", _config(release, layout))
            layout.write(work / "layout.json")
            write_text(work / "recipe.yaml", recipe_yaml(release, layout.units, algorithm))
            parents = {"model": release.fingerprint}
            parents |= {"calibration": calibration_sha256} if calibration_sha256 else {}
            if statistics:
                head = provenance(STATISTICS_KIND, STATISTICS_SCHEMA, parents)
                ratios = headroom(statistics, other_inputs) if other_inputs else None
                write_statistics(work / "input_statistics.json", statistics, head, ratios)
                for remark in remarks(statistics, ratios):
                    progress.warn(remark)
            head = provenance(KIND, SCHEMA_VERSION, parents)
            made = {"model": release.reference, "algorithm": algorithm, "scales": asdict(scales)}
            write_json(work / "checkpoint.json", {**head, **made, **inventory(release, work, changed)})
    return out


def _write_tensors(
    release: Release,
    layout: Layout,
    results: Iterable[QuantizedUnit],
    changed: Collection[str],
    work: Path,
    max_shard_bytes: int,
    statistics: dict[str, InputStatistics],
    unfinished: Unfinished | None,
    progress: Progress,
) -> None:
    """Fill the shards of ``work`` and ``statistics``; of several processes each writes the units it owns."""
    plan, first = _plan(release, layout), 0 if unfinished is None else unfinished.layer
    owned = owned_units(release)
    elsewhere = [unit for unit in release.units if unit.layer < first or unit.name not in owned]
    written = {linear.name for unit in elsewhere for linear in unit.linears}
    written |= {name.rpartition(".")[0] for unit in elsewhere for name in changed_tensors(unit)}
    replaced = {f"{linear.name}.weight" for linear, _ in quantized_linears(release, layout.units)}
    kept = {name: info for name, info in release.tensors.items() if name not in replaced and name not in changed}
    done = {name for name in plan if name not in kept and name.rpartition(".")[0] in written}
    if ranks().first and not first:
        lay_out(work, plan, max_shard_bytes)
    of_first(None)  # the files are there
    with (
        ShardWriter(work, plan, max_shard_bytes, done if ranks().first else done | kept.keys()) as writer,
        progress.task("quantizing", len(release.units), "units") as task,
    ):
        if unfinished is not None:
            unfinished.flush = writer.flush
        for name, info in kept.items() if ranks().first else ():
            writer.copy(name, info)
        task.advance(sum(unit.layer < first for unit in release.units))
        for result in results:
            task.note(f"{result.unit.name} → {layout.units[result.unit.name]}")
            for name, quantized in result.linears.items() if result.unit.name in owned else ():
                for local, tensor in quantized.tensors.items():
                    writer.write(f"{name}.{local}", tensor)
            for name, tensor in result.changed.items() if result.unit.name in owned else ():
                writer.write(name, tensor)
            statistics.update(result.statistics)
            task.advance()


def _plan(release: Release, layout: Layout) -> dict[str, Entry]:
    """Every tensor of the checkpoint in the source's order, a linear's stored tensors at the place of its weight."""
    stored = {f"{linear.name}.weight": (linear, fmt) for linear, fmt in quantized_linears(release, layout.units)}
    plan: dict[str, Entry] = {}
    for name, info in release.tensors.items():
        if name in stored:
            linear, fmt = stored[name]
            for local, (dtype, shape) in fmt.stored(linear).items():
                plan[f"{linear.name}.{local}"] = planned(dtype, shape)
        else:
            plan[name] = Entry(info.dtype, info.shape, info.bytes)
    return plan


def _config(release: Release, layout: Layout) -> dict[str, Any]:
    """The source's ``config.json`` with the quantization and our own object added, nothing else changed."""
    config: dict[str, Any] = json.loads((release.path / "config.json").read_text(encoding="utf-8"))
    formats = [name for name in layout.formats() if name != BF16.name]
    config["quantization_config"] = quantization_config(release, layout.units)
    config["clefquant"] = {
        "schema_version": SCHEMA_VERSION,
        "scheme": formats[0] if len(layout.formats()) == 1 else "mixed",
        "tables": "bf16",
        "minimum_plugin_version": MINIMUM_PLUGIN_VERSION,
    }
    return config
