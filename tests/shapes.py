"""Folders in the shape of the large releases: headers alone are real, the weights are holes in the files."""

import json
from math import prod
from pathlib import Path

from clefquant.export.audit.shapes import text_shapes
from clefquant.recipes.formats import DTYPE_BYTES, Format
from clefquant.release.release import HEAD_CONFIG_FILE
from clefquant.release.shards import Entry, header_bytes, plan_shards, shard_names, write_index
from clefquant.release.units import Linear, reason_kept

_BOTH = {
    "num_key_value_heads": 4, "linear_num_key_heads": 16, "vocab_size": 248320, "head_dim": 256,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
SIZES = {
    "Cloudflare/clef-flash": _BOTH | {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
        "linear_num_value_heads": 32,
    },
    "Cloudflare/clef": _BOTH | {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
        "linear_num_value_heads": 48,
    },
}  # fmt: skip


def large_folder(source: Path, out: Path, sizes: dict[str, int], fmt: Format | None = None) -> Path:
    """``source`` (whose quantization, if any, is in ``fmt`` alone) with the sizes of a large model and holes as
    weights."""
    out.mkdir()
    for file in source.iterdir():
        if file.is_file() and not file.name.startswith("model"):
            (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((out / "config.json").read_text())
    layers = sizes["num_hidden_layers"]
    kinds = ["full_attention" if at % 4 == 3 else "linear_attention" for at in range(layers)]
    config["text_config"] |= sizes | {"layer_types": kinds}
    entries = _entries(config, fmt)
    if fmt:
        group = next(iter(config["quantization_config"]["config_groups"].values()))
        group["targets"] = sorted({name.rpartition(".")[0] for name in entries if name.endswith(".weight_scale")})
        config["quantization_config"]["ignore"] = []
    (out / "config.json").write_text(json.dumps(config))
    head = json.loads((out / HEAD_CONFIG_FILE).read_text()) | {"hidden_size": sizes["hidden_size"]}
    (out / HEAD_CONFIG_FILE).write_text(json.dumps(head))
    shards, weight_map = plan_shards(entries, 5 * 10**9), {}
    for file, shard in zip(shard_names(len(shards)), shards, strict=True):
        _write(out / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    write_index(out, weight_map, sum(entry.bytes for entry in entries.values()))
    return out


def _write(path: Path, entries: dict[str, Entry]) -> None:
    """A whole safetensors file as far as its header and size go; no weight takes room on the disk."""
    with path.open("wb") as handle:
        handle.write(header_bytes(entries))
        handle.truncate(handle.tell() + sum(entry.bytes for entry in entries.values()))


def _entries(config: dict, fmt: Format | None) -> dict[str, Entry]:
    """Tensors of the text model: every unit in ``fmt``, or BF16."""
    entries = {}
    for name, shape in text_shapes(config).items():
        module, _, local = name.rpartition(".")
        stored = {local: ("BF16", shape)}
        if fmt and len(shape) == 2 and reason_kept(name) is None:
            stored = fmt.stored(Linear(module, *shape))
        for part, (dtype, size) in stored.items():
            entries[f"{module}.{part}"] = Entry(dtype, tuple(size), prod(size) * DTYPE_BYTES[dtype])
    return entries
