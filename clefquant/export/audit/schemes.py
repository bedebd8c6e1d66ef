"""``quantization_config`` in either form, as questions an audit asks: who is quantized, how, and which tensors must
be there.

Both forms match module names. compressed-tensors: a target is an exact name, the class name ``Linear`` or ``re:``
plus a pattern matched from the start of the name. Quark: one scheme for every linear but those in ``exclude`` (exact
or with ``*``).
"""

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Spec = tuple[tuple[str, ...], tuple[int, ...]]
_SCALES = ("BF16", "F16", "F32")
QUARK = "quark"
COMPRESSED = "compressed-tensors"


@dataclass(frozen=True)
class Scheme:
    """How a module is stored. ``format``: compressed-tensors' name, or ``quark-mxfp4`` / ``quark-fp8``; ``group``:
    weights per scale along the input (0: none); ``block``: of two-dimensional scales; ``static_input``: a stored
    input scale."""

    format: str
    strategy: str
    bits: int
    group: int = 0
    block: tuple[int, int] | None = None
    static_input: bool = False
    symmetric: bool = True

    def tensors(self, rows: int, columns: int) -> dict[str, Spec] | None:
        """Local tensor name to (allowed dtypes, shape) for a matrix [rows, columns]; None for a format not known
        here."""
        grouped = (rows, math.ceil(columns / (self.group or columns)))
        if self.format == "nvfp4-pack-quantized":
            found: dict[str, Spec] = {
                "weight_packed": (("U8",), (rows, columns // 2)),
                "weight_scale": (("F8_E4M3",), grouped),
                "weight_global_scale": (("F32",), (1,)),
            }
            return found | ({"input_global_scale": (("F32",), (1,))} if self.static_input else {})
        if self.format == "mxfp4-pack-quantized":
            return {"weight_packed": (("U8",), (rows, columns // 2)), "weight_scale": (("U8",), grouped)}
        if self.format == "quark-mxfp4":
            return {"weight": (("U8",), (rows, columns // 2)), "weight_scale": (("U8",), grouped)}
        if self.format == "mxfp8-quantized":
            return {"weight": (("F8_E4M3",), (rows, columns)), "weight_scale": (("U8",), grouped)}
        if self.format in ("float-quantized", "int-quantized", "quark-fp8"):
            weight = "I8" if self.format == "int-quantized" else "F8_E4M3"
            found = {
                "weight": ((weight,), (rows, columns)),
                "weight_scale": (_SCALES, self._scale_shape(rows, columns)),
            }
            return found | ({"input_scale": (_SCALES, (1,))} if self.static_input else {})
        if self.format == "pack-quantized":
            packed = (rows, math.ceil(columns * self.bits / 32))
            return {
                "weight_packed": (("I32",), packed),
                "weight_scale": (_SCALES, grouped),
                "weight_shape": (("I64",), (2,)),
            }
        return None

    def _scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        if self.strategy == "tensor":
            return (1,)
        if self.strategy == "block" and self.block:
            return (math.ceil(rows / self.block[0]), math.ceil(columns / self.block[1]))
        if self.strategy == "group" and self.group:
            return (rows, math.ceil(columns / self.group))
        return (rows, 1)


@dataclass(frozen=True)
class Group:
    """One config group: ``targets`` as written, ``scheme``; ``stated``: whether its format is written out."""

    name: str
    targets: tuple[str, ...]
    scheme: Scheme
    stated: bool

    def matches(self, module: str) -> bool:
        """Whether any target matches a linear of this name."""
        return any(target_matches(target, module) for target in self.targets)


@dataclass(frozen=True)
class Quantization:
    """A parsed ``quantization_config``."""

    method: str
    groups: tuple[Group, ...]
    ignore: tuple[str, ...]
    top_format: str | None

    def ignored(self, module: str) -> bool:
        """Whether the configuration leaves this module alone."""
        if self.method == QUARK:
            return any(fnmatch.fnmatchcase(module, pattern) for pattern in self.ignore)
        return any(target_matches(pattern, module) for pattern in self.ignore)

    def groups_of(self, module: str) -> list[Group]:
        """Groups that quantize this linear."""
        return [] if self.ignored(module) else [group for group in self.groups if group.matches(module)]


def target_matches(target: str, module: str) -> bool:
    """compressed-tensors' rule for a Linear called ``module``."""
    if target.startswith("re:"):
        try:
            return re.match(target[3:], module) is not None
        except re.error:
            return False
    return target in ("Linear", module)


def parse_quantization(config: Mapping[str, Any]) -> Quantization:
    """Read a ``quantization_config``; ValueError says what is not understood."""
    method = str(config.get("quant_method", ""))
    if method == QUARK:
        return _quark(config)
    if method != COMPRESSED:
        raise ValueError(f"quant_method is {method!r}; {COMPRESSED} and {QUARK} are read")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ValueError("config_groups is empty or no object")
    top = config.get("format")
    parsed = tuple(_group(str(name), value, top) for name, value in groups.items())
    return Quantization(method, parsed, tuple(config.get("ignore") or ()), top if isinstance(top, str) else None)


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
    return Group(name, tuple(map(str, value.get("targets") or ())), scheme, stated)


def inferred_format(weights: Mapping[str, Any]) -> str:
    """The format that the weight arguments of a group imply when none is written."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if bits == 4 and kind == "float":
        return "mxfp4-pack-quantized" if group == 32 else "nvfp4-pack-quantized"
    if bits == 8 and kind == "float":
        return "mxfp8-quantized" if group == 32 else "float-quantized"
    return "int-quantized" if bits == 8 else "pack-quantized"


def _quark(config: Mapping[str, Any]) -> Quantization:
    top = config.get("global_quant_config")
    top = top if isinstance(top, dict) else {}
    weight = top.get("weight")
    if not isinstance(weight, dict):
        raise ValueError("global_quant_config has no weight object")
    if weight.get("dtype") == "fp4" and weight.get("qscheme") == "per_group":
        scheme = Scheme("quark-mxfp4", "group", 4, int(weight.get("group_size", 32)))
    elif str(weight.get("dtype", "")).startswith("fp8"):
        inputs = top.get("input_tensors") or {}
        strategy = "channel" if weight.get("qscheme") == "per_channel" else "tensor"
        scheme = Scheme("quark-fp8", strategy, 8, static_input=bool(inputs) and not inputs.get("is_dynamic"))
    else:
        raise ValueError(f"weight dtype {weight.get('dtype')!r} with {weight.get('qscheme')!r} is not read")
    group = Group("global_quant_config", ("Linear",), scheme, True)
    return Quantization(QUARK, (group,), tuple(map(str, config.get("exclude") or ())), None)
