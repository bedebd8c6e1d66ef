"""The weight formats a unit can have: one visible row each.

``ct_format`` is written explicitly into every config group, because the inferred
one changed between compressed-tensors releases.
"""

import math
from dataclasses import dataclass

from clefquant.errors import InputError
from clefquant.release.units import Linear

#: Bytes of one element, by safetensors' name of the dtype.
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I8": 1}


@dataclass(frozen=True)
class Format:
    """One way to store a Linear and to quantize its input.

    ``weight_bits``: of one element; ``scale_dtype``: of a scale, in safetensors' spelling; ``group``: weights per scale
    along the input axis, 0 = one scale per output row. ``global_scale``: a float32 divisor per fused group (and one for the input
    when ``static_input``). ``preset``: llm-compressor's name of the scheme.
    """

    name: str
    preset: str
    ct_format: str
    weight_bits: int
    scale_dtype: str
    group: int
    global_scale: bool
    static_input: bool
    note: str

    def stored(self, linear: Linear) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensors that store ``linear``: local name to safetensors dtype and shape."""
        rows, columns = linear.out_features, linear.in_features
        if self.name == "bf16":
            return {"weight": ("BF16", (rows, columns))}
        weight: tuple[str, str, int] = {8: ("weight", "F8_E4M3", columns), 4: ("weight_packed", "U8", columns // 2)}[self.weight_bits]
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {
            weight[0]: (weight[1], (rows, weight[2])),
            "weight_scale": (self.scale_dtype, (rows, columns // self.group if self.group else 1)),
        }
        if self.global_scale:
            tensors["weight_global_scale"] = ("F32", (1,))
        if self.static_input:
            tensors["input_global_scale"] = ("F32", (1,))
        return tensors

    def tensor_bytes(self, linear: Linear) -> int:
        """Bytes of every tensor that stores ``linear`` in this format."""
        return sum(DTYPE_BYTES[dtype] * math.prod(shape) for dtype, shape in self.stored(linear).values())

    def obstacle(self, linear: Linear) -> str | None:
        """Why this format cannot store ``linear``, or None."""
        if self.group and linear.in_features % self.group:
            return f"{linear.name}: input size {linear.in_features} is not a multiple of {self.name}'s {self.group}"
        return None


BF16 = Format("bf16", "", "dense", 16, "", 0, False, False, "as in the source")
FORMATS: tuple[Format, ...] = (
    Format("fp8", "FP8_DYNAMIC", "float-quantized", 8, "BF16", 0, False, False, "E4M3, per row; input per token"),
    Format("nvfp4", "NVFP4", "nvfp4-pack-quantized", 4, "F8_E4M3", 16, True, True, "E2M1, E4M3 scale per 16"),
    Format("mxfp4", "MXFP4", "mxfp4-pack-quantized", 4, "U8", 32, False, False, "E2M1, power-of-two scale per 32"),
)


def find_format(name: str) -> Format:
    """The format called ``name``; InputError lists what is allowed."""
    for candidate in (BF16, *FORMATS):
        if candidate.name == name:
            return candidate
    raise InputError(f"unknown format {name!r}; allowed: {', '.join(f.name for f in FORMATS)} (or bf16 in a layout)")
