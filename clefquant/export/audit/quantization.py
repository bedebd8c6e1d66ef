"""Reading a ``quantization_config`` as compressed-tensors or Quark writes it."""

from collections.abc import Mapping
from typing import Any

from clefquant.export.audit.quark import parse_quark
from clefquant.export.audit.schemes import COMPRESSED, QUARK, Group, Quantization, Scheme, names_in


def parse_quantization(config: Mapping[str, Any]) -> Quantization:
    """Read a ``quantization_config``; ValueError says what is not understood."""
    method = str(config.get("quant_method", ""))
    if method == QUARK:
        return parse_quark(config)
    if method != COMPRESSED:
        raise ValueError(f"quant_method is {method!r}; {COMPRESSED} and {QUARK} are read")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ValueError("config_groups is empty or no object")
    top = config.get("format")
    parsed = tuple(_group(str(name), value, top) for name, value in groups.items())
    return Quantization(method, parsed, names_in(config, "ignore"), top if isinstance(top, str) else None)


def _group(name: str, value: Any, top: Any) -> Group:
    if not isinstance(value, dict) or not isinstance(value.get("weights"), dict):
        raise ValueError(f"{name} has no weights object")
    weights, inputs = value["weights"], value.get("input_activations") or {}
    stated = isinstance(value.get("format"), str)
    block = weights.get("block_structure")
    fmt = (
        value["format"]
        if stated
        else (top if isinstance(top, str) and top != "mixed-precision" else inferred_format(weights))
    )
    scheme = Scheme(
        format=str(fmt),
        strategy=str(weights.get("strategy")),
        bits=int(weights.get("num_bits", 8)),
        group=max(int(weights.get("group_size") or 0), 0),
        block=(int(block[0]), int(block[1])) if isinstance(block, list | tuple) and len(block) == 2 else None,
        # "local": a global scale is stored and the rest found at run time
        static_input=bool(inputs) and inputs.get("dynamic") in (False, None, "local"),
        symmetric=bool(weights.get("symmetric", True)),
    )
    return Group(name, names_in(value, "targets"), scheme, stated)


def inferred_format(weights: Mapping[str, Any]) -> str:
    """The format that the weight arguments of a group imply when none is written."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if bits == 4 and kind == "float":
        return "mxfp4-pack-quantized" if group == 32 else "nvfp4-pack-quantized"
    if bits == 8 and kind == "float":
        return "mxfp8-quantized" if group == 32 else "float-quantized"
    return "int-quantized" if bits == 8 else "pack-quantized"
