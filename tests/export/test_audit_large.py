"""A folder in the shape of the 27B release: headers alone are real, the weights are holes in the files."""

import json

import pytest

from clefquant.export import audit as module
from clefquant.export.audit import audit
from clefquant.export.audit.shapes import EMBEDDING, text_shapes
from clefquant.export.describe_model import describe_model
from clefquant.recipes.formats import DTYPE_BYTES, Format, find_format
from clefquant.release.release import HEAD_CONFIG_FILE
from clefquant.release.shards import Entry, header_bytes, plan_shards, shard_names, write_index
from clefquant.release.units import Linear, reason_kept

SHAPE = {
    "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
    "num_key_value_heads": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "vocab_size": 248320,
    "head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
BYTES = 55_000_000_000


def _sparse(path, entries) -> None:
    """A whole safetensors file as far as its header and size go; no weight takes room on the disk."""
    with path.open("wb") as handle:
        handle.write(header_bytes(entries))
        handle.truncate(handle.tell() + sum(entry.bytes for entry in entries.values()))


def _entries(config, fmt: Format | None) -> dict[str, Entry]:
    """Tensors of the text model: every unit in ``fmt``, or BF16."""
    entries = {}
    for name, shape in text_shapes(config).items():
        module = name.removesuffix(".weight")
        if fmt and len(shape) == 2 and module.endswith(("_proj", "_qkv", "_z")) and reason_kept(name) is None:
            stored = fmt.stored(Linear(module, *shape))
        else:
            stored = {name.rpartition(".")[2]: ("BF16", shape)}
        for local, (dtype, size) in stored.items():
            count = 1
            for length in size:
                count *= length
            full = f"{module}.{local}" if name.endswith(".weight") else name
            entries[full] = Entry(dtype, tuple(size), count * DTYPE_BYTES[dtype])
    return entries


@pytest.fixture
def large(tiny, make_checkpoint, tmp_path, monkeypatch):
    """Writes a folder in one format (None: BF16); its weights are not read."""
    monkeypatch.setattr(module, "check_contents", lambda folder, task: ({}, []))

    def make(name: str | None):
        source = tiny.path if name is None else make_checkpoint(name)
        folder = tmp_path / str(name)
        folder.mkdir()
        for file in source.iterdir():
            if file.is_file() and not file.name.startswith("model"):
                (folder / file.name).write_bytes(file.read_bytes())
        config = json.loads((folder / "config.json").read_text())
        config["text_config"] |= SHAPE | {
            "layer_types": ["full_attention" if at % 4 == 3 else "linear_attention" for at in range(64)]
        }
        entries = _entries(config, find_format(name) if name else None)
        if name:
            group = next(iter(config["quantization_config"]["config_groups"].values()))
            modules = {full.rpartition(".")[0] for full in entries if full.endswith(".weight_scale")}
            group["targets"] = sorted(modules)
            config["quantization_config"]["ignore"] = []
        (folder / "config.json").write_text(json.dumps(config))
        head = json.loads((folder / HEAD_CONFIG_FILE).read_text()) | {"hidden_size": 5120}
        (folder / HEAD_CONFIG_FILE).write_text(json.dumps(head))
        shards, weight_map = plan_shards(entries, 5 * 10**9), {}
        for file, shard in zip(shard_names(len(shards)), shards, strict=True):
            _sparse(folder / file, shard)
            weight_map |= dict.fromkeys(shard, file)
        write_index(folder, weight_map, sum(entry.bytes for entry in entries.values()))
        return folder

    return make


@pytest.mark.parametrize("name", [None, "fp8", "nvfp4", "mxfp4"])
def test_it_is_clean(large, name):
    folder = large(name)
    assert [f.message for f in audit(folder, ranks=4) if f.severity == "error"] == []
    described, values = describe_model(folder)
    assert "64 layers, hidden size 5120" in described[0]
    assert values["bytes"]["embedding"] == values["bytes"]["lm_head"] == 2 * 248320 * 5120
    total = sum(values["bytes"].values())
    assert total > 0.9 * BYTES if name is None else total < 0.65 * BYTES


def test_ranks_that_do_not_divide(large):
    folder = large("nvfp4")
    found = {f.check for f in audit(folder, ranks=48) if f.severity == "error"}
    assert "tensor-parallel" in found


def test_a_table_that_is_missing(large):
    folder = large("fp8")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    (folder / index[EMBEDDING]).unlink()
    found = {f.check for f in audit(folder) if f.severity == "error"}
    assert {"missing-file", "missing-tables"} <= found
