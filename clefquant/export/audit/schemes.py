"""A parsed ``quantization_config``, as questions an audit asks: who is quantized, how, and which tensors must be there.

Both forms match module names. compressed-tensors: a target is an exact name, the class name ``Linear`` or ``re:``
plus a pattern matched from the start of the name. Quark: names and patterns with ``*`` of ``layer_quant_config`` come
first, then one scheme for every other linear; ``exclude`` holds exact names and ``re:`` patterns.
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
    """How a module is stored. ``format``: compressed-tensors' name, or ``quark-mxfp4``, ``quark-fp8``, ``quark-int8``
    (other Quark formats are named and not checked); ``group``: weights per scale along the input (0: none);
    ``block``: of two-dimensional scales; ``static_input``: a stored input scale."""

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
        if self.format in ("float-quantized", "int-quantized", "quark-fp8", "quark-int8"):
            weight = "I8" if self.format in ("int-quantized", "quark-int8") else "F8_E4M3"
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
        matches = quark_matches if self.method == QUARK else target_matches
        return any(matches(pattern, module) for pattern in self.ignore)

    def groups_of(self, module: str) -> list[Group]:
        """Groups that quantize this linear; of Quark's the first one decides."""
        if self.ignored(module):
            return []
        if self.method == QUARK:
            return [g for g in self.groups if any(quark_matches(target, module) for target in g.targets)][:1]
        return [group for group in self.groups if group.matches(module)]


def names_in(config: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """The module names and patterns of a field, none when it is missing; ValueError when it is no list of text."""
    value = config.get(field) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{field} is {value!r}, which is no list of module names")
    return tuple(value)


def target_matches(target: str, module: str) -> bool:
    """compressed-tensors' rule for a Linear called ``module``."""
    if target.startswith("re:"):
        try:
            return re.match(target[3:], module) is not None
        except re.error:
            return False
    return target in ("Linear", module)


def quark_matches(pattern: str, module: str) -> bool:
    """Quark's rule: a pattern with ``*``, else as compressed-tensors'."""
    if "*" in pattern and not pattern.startswith("re:"):
        return fnmatch.fnmatchcase(module, pattern)
    return target_matches(pattern, module)
