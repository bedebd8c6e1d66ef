"""Quantized copies of a release, written tensor by tensor with compressed-tensors' own functions (0.17, vLLM's pin)."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FUSED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkv", "in_proj_z")]
FORMATS = {"FP8_DYNAMIC": "float-quantized", "NVFP4": "nvfp4-pack-quantized", "MXFP4": "mxfp4-pack-quantized"}
LINEAR = re.compile(
    r"model\.language_model\.layers\.(\d+)\.(mlp\.(gate|up|down)_proj|linear_attn\.(in_proj_qkv|in_proj_z|out_proj)"
    r"|self_attn\.[qkvo]_proj)\.weight"
)


def scheme_of(name: str, layout: dict[int, str] | str) -> str | None:
    """The preset for a weight, or None where it stays as it is."""
    found = LINEAR.fullmatch(name)
    if not found:
        return None
    return layout if isinstance(layout, str) else layout[int(found[1])]


def quantize(source: Path, target: Path, layout: dict[int, str] | str) -> Path:
    """Copy a BF16 release with its language-model linears quantized; layout names one preset or one per layer."""
    shutil.copytree(source, target)
    weights = load_file(source / "model.safetensors")
    out: dict[str, torch.Tensor] = {}
    groups: dict[str, list[str]] = {}
    for name, weight in weights.items():
        preset = scheme_of(name, layout)
        if preset is None:
            out[name] = weight
            continue
        module = name.removesuffix(".weight")
        groups.setdefault(preset, []).append(module)
        out |= {f"{module}.{key}": value for key, value in compress(module, weights, preset).items()}
    save_file(out, target / "model.safetensors")
    write_index(target, out)
    config = json.loads((target / "config.json").read_text())
    linears = [n.removesuffix(".weight") for n, w in weights.items() if w.dim() == 2 and "norm" not in n]
    ignore = sorted(set(linears) - {module for modules in groups.values() for module in modules})
    config["quantization_config"] = quantization_config(groups, ignore)
    (target / "config.json").write_text(json.dumps(config))
    return target


def write_index(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
             "weight_map": dict.fromkeys(tensors, "model.safetensors")}  # fmt: skip
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def preset_scheme(preset: str) -> Any:
    from compressed_tensors.quantization import preset_name_to_scheme

    return preset_name_to_scheme(preset, ["Linear"])


def compress(module: str, weights: dict[str, torch.Tensor], preset: str) -> dict[str, torch.Tensor]:
    """The tensors that replace one weight [O, I] bf16."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme, weight = preset_scheme(preset), weights[f"{module}.weight"]
    args = scheme.weights
    blocks = weight.unflatten(-1, (-1, args.group_size)) if args.group_size and args.group_size > 0 else weight
    state = {"weight": weight}
    shared = None
    if preset == "NVFP4":
        peak = max(weights[f"{name}.weight"].abs().max() for name in fused_with(module))
        shared = generate_gparam(-peak, peak)
        state["weight_global_scale"] = shared
        # A fixed activation range for every layer: generous for normed activations of this small model.
        state["input_global_scale"] = generate_gparam(torch.tensor(-20.0), torch.tensor(20.0))
    keep = not (args.group_size and args.group_size > 0)
    scale, _ = calculate_qparams(
        blocks.amin(-1, keepdim=keep), blocks.amax(-1, keepdim=keep), args, global_scale=shared
    )
    state["weight_scale"] = scale
    compressor = BaseCompressor.get_value_from_registry(FORMATS[preset])
    return {key: value.contiguous() for key, value in compressor.compress(state, scheme).items()}


def fused_with(module: str) -> list[str]:
    parent, part = module.rsplit(".", 1)
    return [f"{parent}.{name}" for group in FUSED if part in group for name in group] or [module]


def quantization_config(groups: dict[str, list[str]], ignore: list[str]) -> dict[str, Any]:
    entries = {}
    for number, (preset, modules) in enumerate(sorted(groups.items())):
        scheme = preset_scheme(preset).model_dump(mode="json")
        scheme["targets"], scheme["format"] = list(modules), FORMATS[preset]
        entries[f"group_{number}"] = scheme
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision" if len(groups) > 1 else FORMATS[next(iter(groups))],
        "quantization_status": "compressed",
        "config_groups": entries,
        "ignore": ignore,
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
    }


def simulate(model: Any, folder: Path, layout: dict[int, str] | str) -> None:
    """Give a transformers model the quantized folder's arithmetic: dequantized weights, fake-quantized activations."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    stored = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        preset = scheme_of(f"{name}.weight", layout)
        if preset is None:
            continue
        scheme = preset_scheme(preset)
        state = {k.removeprefix(f"{name}."): v for k, v in stored.items() if k.startswith(f"{name}.")}
        global_scale = state.get("input_global_scale")
        compressor = BaseCompressor.get_value_from_registry(FORMATS[preset])
        module.weight.data = compressor.decompress(state, scheme)["weight"].to(module.weight.dtype)

        def quantize_input(
            _: Any, inputs: tuple[torch.Tensor], args: Any = scheme.input_activations, shared: Any = global_scale
        ) -> tuple[torch.Tensor]:
            x = inputs[0].float()
            scale, zero = compute_dynamic_scales_and_zp(x, args, None, global_scale=shared)
            return (fake_quantize(x, scale, zero, args, global_scale=shared).to(inputs[0].dtype),)

        module.register_forward_pre_hook(quantize_input)


def shrink_tables(source: Path, target: Path, marker: str | None) -> tuple[Path, dict[str, torch.Tensor]]:
    """Copy a release with int8 vocabulary tables; also returns the tables as the plugin will see them."""
    shutil.copytree(source, target)
    weights = load_file(source / "model.safetensors")
    names = {"embed_tokens": "model.language_model.embed_tokens.weight", "lm_head": "lm_head.weight"}
    tables, seen = {}, {}
    for short, name in names.items():
        table = weights.pop(name).float()
        scale = table.abs().amax(1).clamp(min=1e-12) / 127
        tables[f"{short}.weight"] = (table / scale[:, None]).round().to(torch.int8)
        tables[f"{short}.scale"] = scale
        seen[name] = (tables[f"{short}.weight"].float() * scale[:, None]).bfloat16()
    (target / "clef_head").mkdir(exist_ok=True)
    save_file(tables, target / "clef_head" / "tables_int8.safetensors")
    save_file(weights, target / "model.safetensors")
    write_index(target, weights)
    if marker:
        path = target / "joint_head_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "requires_clef_vllm": marker}))
    return target, seen
