"""Safetensors files, index and ``config.json`` of a folder somebody sent: found at fault, or read; nothing else."""

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from values import JSON, damaged

from clefquant.errors import ClefquantError
from clefquant.export.audit import audit
from clefquant.export.inspection import inspect
from clefquant.release.headers import read_backbone
from clefquant.release.release import open_release
from clefquant.release.scan import scan

LAYER = "model.language_model.layers.0"
SIZES = {
    "BF16": 2,
    "F8_E4M3": 1,
    "U8": 1,
    "F32": 4,
    "I8": 1,
    "I64": 8,
    "F4": 1,
    "F64": 8,
    "BOOL": 1,
    "I32": 4,
    "F16": 2,
}
SHAPES = {
    f"{LAYER}.mlp.gate_proj.weight_packed": ("U8", [4, 8]), f"{LAYER}.mlp.gate_proj.weight_scale": ("F8_E4M3", [4, 1]),
    f"{LAYER}.mlp.gate_proj.weight_global_scale": ("F32", [1]), f"{LAYER}.mlp.up_proj.weight": ("F8_E4M3", [4, 4]),
    f"{LAYER}.mlp.up_proj.weight_scale": ("BF16", [4, 1]), f"{LAYER}.linear_attn.in_proj_a.weight": ("BF16", [2, 4]),
    "model.language_model.embed_tokens.weight": ("BF16", [3, 4]), "lm_head.weight": ("BF16", [3, 4]),
}  # fmt: skip
FILES = ("model.safetensors", "model-00001-of-00002.safetensors", "joint_head.safetensors")


def sound_header() -> tuple[dict[str, Any], int]:
    """A header, and the size of its tensors in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in SHAPES.items():
        size = SIZES[dtype] * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def as_file(header: Any, repeated: bool, body: bytes, length: int | None, cut: int | None) -> bytes:
    text = json.dumps(header)
    if repeated and isinstance(header, dict) and header:  # every key twice
        text = f"{text[:-1]},{text[1:]}"
    head = text.encode()
    return (struct.pack("<Q", len(head) if length is None else length) + head + body)[:cut]


def sound_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((open_release("nano").path / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head", "re:.*a"],
        "config_groups": {"group_0": {
            "targets": [f"{LAYER}.mlp.gate_proj", "re:.*up_proj"], "format": "nvfp4-pack-quantized",
            "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 16},
            "input_activations": {"dynamic": "local"},
        }},
    }  # fmt: skip
    return config


def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Callable[[Any], None]]:
    header, size = sound_header()
    words = JSON | st.sampled_from((*SIZES, *SHAPES, "x.weight", "x.scale", [0, 4], [-8, size], [2**60, 2], [size]))
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(SHAPES, FILES[0])}
    body = st.binary(min_size=size, max_size=size)
    file = st.one_of(
        st.builds(as_file, damaged(header, 2, words), st.booleans(), body, st.none(), st.none()),
        st.builds(as_file, damaged(header, 1, words), st.just(False), body, st.integers(0, 2**64 - 1), st.none()),
        st.builds(
            as_file, st.just(header), st.just(False), body, st.integers(0, 3000) | st.none(), st.integers(0, 900)
        ),
        st.binary(max_size=40),
    )
    texts = st.tuples(damaged(sound_config(), 2, words), damaged(index, 2, words | st.sampled_from(FILES)) | st.none())
    inputs = st.tuples(st.dictionaries(st.sampled_from(FILES), file, min_size=1), texts)

    def check(given: tuple[dict[str, bytes], tuple[Any, Any]]) -> None:
        files, (config, index) = given
        place = folder / "release"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
        for name, value in (("config.json", config), ("model.safetensors.index.json", index)):
            if value is not None:
                (place / name).write_text(json.dumps(value))
        for ranks in (1, 3):
            assert all(json.dumps(finding.to_json()) for finding in audit(place, ranks=ranks))
        for read in (lambda: inspect(str(place)), lambda: scan(read_backbone(place))):
            with suppress(ClefquantError):
                read()

    return inputs, check
