"""AMD Quark's ``quantization_config``: one scheme for all linears, overrides by name or pattern, exclusions.

vLLM takes the first entry of ``layer_quant_config`` that matches (``*`` patterns, or the exact name), else
``global_quant_config``; ``exclude`` holds exact names and ``re:`` patterns, a ``*`` does nothing there.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from clefquant.export.audit.finding import Finding, error, warning
from clefquant.export.audit.schemes import QUARK, Group, Quantization, Scheme, names_in

_FILE = "config.json"
_GLOBAL = "global_quant_config"


def parse_quark(config: Mapping[str, Any]) -> Quantization:
    """Read it; ValueError says what is not understood."""
    overrides = config.get("layer_quant_config") or {}
    if not isinstance(overrides, dict):
        raise ValueError("layer_quant_config is no object")
    ignore = [*names_in(config, "exclude")]
    groups = []
    for pattern, value in overrides.items():
        if isinstance(value, dict) and value.get("weight") is None:
            ignore.append(pattern)
        else:
            groups.append(_group(f"layer_quant_config {pattern}", (pattern,), value))
    groups.append(_group(_GLOBAL, ("Linear",), config.get(_GLOBAL)))
    return Quantization(QUARK, tuple(groups), tuple(ignore), None)


def _group(name: str, targets: tuple[str, ...], value: Any) -> Group:
    weight = value.get("weight") if isinstance(value, dict) else None
    if not weight:
        raise ValueError(f"{name} has no weight object")
    return Group(name, targets, _scheme(weight, value.get("input_tensors") or {}), True)


def _scheme(weight: Any, inputs: Any) -> Scheme:
    static = isinstance(inputs, dict) and bool(inputs) and not inputs.get("is_dynamic")
    if not isinstance(weight, dict):  # several specifications in a row, as for NVFP4: named, not checked
        return Scheme("quark-" + "+".join(str(part.get("dtype")) for part in weight), "group", 4)
    kind, layout = str(weight.get("dtype")), weight.get("qscheme")
    if kind == "fp4" and layout == "per_group" and weight.get("scale_format", "e8m0") == "e8m0":
        return Scheme("quark-mxfp4", "group", 4, int(weight.get("group_size") or 32), static_input=static)
    if kind in ("fp8_e4m3", "int8") and layout in ("per_tensor", "per_channel"):
        strategy = "channel" if layout == "per_channel" else "tensor"
        return Scheme("quark-fp8" if kind == "fp8_e4m3" else "quark-int8", strategy, 8, static_input=static)
    return Scheme(f"quark-{kind}-{layout}", str(layout), 8)


def check_quark(config: Mapping[str, Any]) -> Iterator[Finding]:
    """How it is written: what vLLM refuses to parse, or reads otherwise than Quark."""
    if config.get("algo_config") is not None:
        remedy = "set it to null; AWQ is folded into the weights"
        yield error("algo-config", "algo_config is set: vLLM does not parse it", remedy, _FILE)
    export = config.get("export")
    if not isinstance(export, dict):
        yield error("quark-export", "export is missing: vLLM refuses such a configuration", "export it again", _FILE)
    elif export.get("kv_cache_group") or config.get("kv_cache_quant_config"):
        message = "a key/value cache scheme is set, but servers drop the scales of this family and use 1.0"
        yield warning("kv-cache", message, "quantize without it", _FILE)
    for name in config.get("exclude") or ():
        if "*" in str(name) and not str(name).startswith("re:"):
            message = f"exclude has {name!r}: vLLM matches exact names and re: patterns alone, so it excludes nothing"
            yield error("pattern", message, "write exact module names", _FILE)
