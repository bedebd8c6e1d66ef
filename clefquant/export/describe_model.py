"""A release or checkpoint folder in one screen: parts with formats and bytes, the layout, calibration, figures,
servers.
"""

from pathlib import Path
from typing import Any

from clefquant.errors import InputError
from clefquant.export.audit.config import check_quantization
from clefquant.export.audit.folder import AuditFolder, read_folder
from clefquant.export.audit.modules import quantized_modules
from clefquant.export.audit.schemes import Quantization
from clefquant.export.audit.serving import check_serving
from clefquant.export.card import FACTS_FILE, FACTS_KIND, FACTS_SCHEMA
from clefquant.export.figures import report_figures
from clefquant.export.parts import layout_parts, picture
from clefquant.release.artefact import read_json
from clefquant.release.units import BLOCKS, LAYER_PREFIX
from clefquant.verify.stored_report import REPORT_FILE, read_report

_NAMES = {
    "nvfp4-pack-quantized": "nvfp4", "mxfp4-pack-quantized": "mxfp4", "quark-mxfp4": "mxfp4", "float-quantized": "fp8",
    "quark-fp8": "fp8", "mxfp8-quantized": "mxfp8", "int-quantized": "int8",
    "quark-int8": "int8", "pack-quantized": "w4a16",
}  # fmt: skip
_PARTS = (
    ("embedding", "model.language_model.embed_tokens."),
    ("lm_head", "lm_head."),
    ("vision tower", "model.visual."),
    ("next-token heads", "mtp."),
)


def describe_model(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Lines for people and the same as values."""
    folder = read_folder(path)
    if not folder.tensors:
        reason = folder.findings[0].message if folder.findings else "it holds no weights"
        raise InputError(f"{path} cannot be described: {reason}.")
    quantization, _ = check_quantization(folder)
    units = unit_formats(folder, quantization)
    parts = _bytes(folder)
    layers = folder.text.get("num_hidden_layers", "?")
    total = sum(parts.values())
    lines = [
        f"{path.name}: {layers} layers, hidden size {folder.text.get('hidden_size', '?')}, {total / 1e6:,.1f} MB, "
        f"{_method(quantization)}",
        "",
        *[f"  {name:20} {size / 1e6:>10,.1f} MB" for name, size in parts.items() if size],
        "",
        *[f"  {part.title}, layers {part.layers}: {part.format}" for part in layout_parts(units)],
        "",
        *picture(units),
        "",
        *_calibration(path),
        *_figures(path),
        *[found.message for found in check_serving(folder, quantization)],
    ]
    checkpoint = (path / "checkpoint.json").is_file() and not (path / FACTS_FILE).is_file()
    return lines, {"path": str(path), "checkpoint": checkpoint, "bytes": parts, "units": units, "layers": layers}


def unit_formats(folder: AuditFolder, quantization: Quantization | None) -> dict[str, str]:
    """Format of every unit from what is stored; ``mixed`` where its linears differ."""
    found: dict[str, set[str]] = {}
    quantized = quantized_modules(folder)
    leaves = {f"{block}.{leaf}" for block, _, groups in BLOCKS for group in groups for leaf in group}
    for name in folder.tensors:
        module = name.rpartition(".")[0]
        tail = module.removeprefix(LAYER_PREFIX).partition(".")[2]
        if not name.startswith(LAYER_PREFIX) or tail not in leaves:
            continue
        groups = quantization.groups_of(module) if quantization and module in quantized else []
        fmt = groups[0].scheme.format if groups else ("unknown" if module in quantized else "bf16")
        unit = f"layers.{module.removeprefix(LAYER_PREFIX).partition('.')[0]}.{tail.partition('.')[0]}"
        found.setdefault(unit, set()).add(_NAMES.get(fmt, fmt))
    return {unit: formats.pop() if len(formats) == 1 else "mixed" for unit, formats in found.items()}


def _bytes(folder: AuditFolder) -> dict[str, int]:
    sizes = dict.fromkeys(["MLP", "linear attention", "full attention", "embedding", "lm_head", "vision tower"], 0)
    titles = {"mlp": "MLP", "linear_attn": "linear attention", "self_attn": "full attention"}
    for name, info in folder.tensors.items():
        block = name.removeprefix(LAYER_PREFIX).split(".")[1] if name.startswith(LAYER_PREFIX) else ""
        part = titles.get(block) or next(
            (title for title, prefix in _PARTS if name.startswith(prefix)), "norms and other"
        )
        sizes[part] = sizes.get(part, 0) + info.bytes
    sizes["int8 tables"] = sum(info.bytes for info in (folder.tables or {}).values())
    sizes["joint head"] = sum(info.bytes for info in folder.head.values())
    return sizes


def _method(quantization: Quantization | None) -> str:
    if quantization is None:
        return "not quantized"
    formats = sorted({_NAMES.get(group.scheme.format, group.scheme.format) for group in quantization.groups})
    return f"{' + '.join(formats)} ({quantization.method})"


def _calibration(path: Path) -> list[str]:
    if not (path / FACTS_FILE).is_file():
        return []
    facts = read_json(path / FACTS_FILE, FACTS_KIND, FACTS_SCHEMA)
    found = facts.get("calibration")
    made = f"made from {facts.get('base_model') or facts.get('model')}"
    if not found:
        return [made]
    sources = ", ".join(f"{source['name']} {source['records']:,}" for source in found.get("sources", ()))
    return [f"{made}; calibrated on {found['records']:,} records, {found['tokens']:,} tokens: {sources}"]


def _figures(path: Path) -> list[str]:
    if not (path / REPORT_FILE).is_file():
        return []
    figures = report_figures(read_report(path / REPORT_FILE))
    pairs = zip(figures.columns, figures.rows[-1].values, strict=True)
    return [f"verified: {', '.join(f'{name} {value}' for name, value in pairs)}; {figures.measured}"]
