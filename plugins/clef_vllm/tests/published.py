"""The folder shapes of the four published quantizations of Clef and Clef-Flash, made from a small release."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantized import FORMATS, quantize, shrink_tables, simulate, write_index
from safetensors.torch import load_file, save_file

HEAD_FILES = ("joint_head.safetensors", "joint_head_config.json")
MIXED = {layer: list(FORMATS)[layer % 3] for layer in range(8)}
SHAPES = ("flash-fp8", "clef-nvfp4", "flash-mixed", "clef-mxfp4")
Prepare = Callable[[Any], None]


def publish(shape: str, source: Path, work: Path) -> tuple[Path, Prepare]:
    """The folder, and what gives a transformers model its arithmetic."""
    layout = {"flash-fp8": "FP8_DYNAMIC", "clef-nvfp4": "NVFP4", "flash-mixed": MIXED, "clef-mxfp4": "MXFP4"}[shape]
    plain = quantize(source, work / "plain", layout)
    folder, tables = work / shape, {}
    if shape == "clef-nvfp4":
        _, tables = shrink_tables(plain, folder, marker=None)
    else:
        shutil.copytree(plain, folder)
    if shape in ("flash-fp8", "clef-nvfp4"):
        _head_in_a_folder(folder, marker="0.1.0" if tables else None)
        (folder / "model.safetensors.index.json").unlink()
        _edit(
            folder, lambda config: config["quantization_config"]["config_groups"]["group_0"].update(targets=["Linear"])
        )
    elif shape == "clef-mxfp4":
        _quark(folder)
    (folder / "vllm_plugin" / "clef_vllm").mkdir(parents=True)
    (folder / "layout.json").write_text("{}")

    def prepare(model: Any) -> None:
        simulate(model, plain, layout)
        model.load_state_dict(tables, strict=False)

    return folder, prepare


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def _head_in_a_folder(folder: Path, marker: str | None) -> None:
    (folder / "clef_head").mkdir(exist_ok=True)
    for name in HEAD_FILES:
        (folder / name).rename(folder / "clef_head" / name)
    if marker:
        path = folder / "clef_head" / "joint_head_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "requires_clef_vllm": marker}))


def _quark(folder: Path) -> None:
    """As AMD Quark 0.13 exports: five shards, weights under their plain names, its own configuration."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tensors = {name.replace(".weight_packed", ".weight"): tensor for name, tensor in tensors.items()}
    names, held = sorted(tensors), {}
    for number in range(5):
        part = {name: tensors[name] for name in names[number::5]}
        file = f"model-{number + 1:05d}-of-00005.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        held.update(dict.fromkeys(part, file))
    write_index(folder, tensors)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    (folder / "model.safetensors.index.json").write_text(json.dumps({**index, "weight_map": held}))
    _edit(folder, lambda config: config.update(quantization_config=_quark_config(config["quantization_config"])))


def _quark_config(ours: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "dtype": "fp4", "is_dynamic": False, "qscheme": "per_group", "ch_axis": -1, "group_size": 32,
        "block_size": None, "symmetric": None, "round_method": "half_even", "scale_type": "float",
        "scale_format": "e8m0", "scale_calculation_mode": "even", "mx_element_dtype": None,
        "observer_cls": "PerBlockMXObserver", "is_scale_quant": False,
    }  # fmt: skip
    return {
        "quant_method": "quark", "quant_mode": "eager_mode", "version": "0.13", "algo_config": None,
        "exclude": ours["ignore"], "layer_quant_config": {}, "layer_type_quant_config": {},
        "kv_cache_quant_config": {}, "kv_cache_post_rope": False, "softmax_quant_spec": None,
        "global_quant_config": {"weight": spec, "input_tensors": {**spec, "is_dynamic": True}, "output_tensors": None,
                                "bias": None, "target_device": None},
        "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
                   "weight_format": "real_quantized", "weight_merge_groups": None},
    }  # fmt: skip
