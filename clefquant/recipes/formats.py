"""The weight formats a unit can have: one visible row each.

``ct_format`` is written explicitly into every config group, because the inferred one changed between
compressed-tensors releases. How each runs on a GPU is read in vLLM 0.32's compressed-tensors schemes; ``clefquant
doctor`` says what the GPU at hand does with them.
"""

import math
from dataclasses import dataclass
from typing import Literal

from clefquant.errors import InputError
from clefquant.release.units import Linear

#: Bytes of one element, by safetensors' name of the dtype.
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I8": 1, "I32": 4, "I64": 8}

Element = Literal["bf16", "e4m3", "e2m1", "int8", "int4"]

#: Element to (stored tensor, its dtype, elements per stored number).
_PACKING: dict[Element, tuple[str, str, int]] = {
    "bf16": ("weight", "BF16", 1),
    "e4m3": ("weight", "F8_E4M3", 1),
    "int8": ("weight", "I8", 1),
    "e2m1": ("weight_packed", "U8", 2),
    "int4": ("weight_packed", "I32", 8),
}


@dataclass(frozen=True)
class Format:
    """One way to store a Linear and to quantize its input.

    ``preset``: llm-compressor's name of the scheme. ``element``: of a weight. ``scale_dtype``: of a scale, in
    safetensors' spelling. ``group``: weights per scale along the input axis; 0 = one scale per output row.
    ``block``: side of the square that shares a scale instead; 0 = none. ``input``: how the input is rounded ("" =
    not at all, 16-bit). ``global_scale``: a float32 divisor per fused group, and one for the input if it is rounded.
    ``served``: on which GPUs it runs how.
    """

    name: str
    preset: str
    ct_format: str
    element: Element
    scale_dtype: str
    group: int
    block: int
    input: str
    global_scale: bool
    served: str

    @property
    def four_bit(self) -> bool:
        """Whether a weight has 4 bits."""
        return self.element in ("e2m1", "int4")

    @property
    def static_input(self) -> bool:
        """Whether a calibration pass must find the input's scale."""
        return self.global_scale and bool(self.input)

    def stored(self, linear: Linear) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensors that store ``linear``: local name to safetensors dtype and shape."""
        rows, columns = linear.out_features, linear.in_features
        name, dtype, per_number = _PACKING[self.element]
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {name: (dtype, (rows, columns // per_number))}
        if self.element == "bf16":
            return tensors
        if self.element == "int4":
            tensors["weight_shape"] = ("I64", (2,))
        if self.block:
            scales: tuple[int, ...] = (-(-rows // self.block), -(-columns // self.block))
        else:
            scales = (rows, columns // self.group if self.group else 1)
        tensors["weight_scale"] = (self.scale_dtype, scales)
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
        step = self.block if self.input == "per 128" else self.group
        if step and linear.in_features % step:
            return f"{linear.name}: input size {linear.in_features} is not a multiple of {self.name}'s {step}"
        return None


BF16 = Format("bf16", "", "dense", "bf16", "", 0, 0, "", False, "as in the source")
_FP8 = "tensor cores from compute capability 8.9, weight-only below"
_FP4 = "tensor cores from compute capability 10.0, weight-only (16-bit input) below"
_W16 = "weight-only on every GPU: input and product in 16 bits"
FORMATS: tuple[Format, ...] = (
    Format("fp8", "FP8_DYNAMIC", "float-quantized", "e4m3", "BF16", 0, 0, "per token", False, _FP8),
    Format("fp8-block", "FP8_BLOCK", "float-quantized", "e4m3", "BF16", 0, 128, "per 128", False, _FP8),
    Format("mxfp8", "MXFP8", "mxfp8-quantized", "e4m3", "U8", 32, 0, "per 32", False, _FP4),
    Format("int8", "W8A8", "int-quantized", "int8", "BF16", 0, 0, "per token", False, "tensor cores from 7.5"),
    Format("nvfp4", "NVFP4", "nvfp4-pack-quantized", "e2m1", "F8_E4M3", 16, 0, "per 16, static", True, _FP4),
    Format("nvfp4a16", "NVFP4A16", "nvfp4-pack-quantized", "e2m1", "F8_E4M3", 16, 0, "", True, _W16),
    Format("mxfp4", "MXFP4", "mxfp4-pack-quantized", "e2m1", "U8", 32, 0, "per 32", False, _FP4),
    Format("mxfp4a16", "MXFP4A16", "mxfp4-pack-quantized", "e2m1", "U8", 32, 0, "", False, _W16),
    Format("w4a16", "W4A16", "pack-quantized", "int4", "BF16", 128, 0, "", False, _W16),
)


def find_format(name: str) -> Format:
    """The format called ``name``; InputError lists what is allowed."""
    for candidate in (BF16, *FORMATS):
        if candidate.name == name:
            return candidate
    raise InputError(f"unknown format {name!r}; allowed: {', '.join(f.name for f in FORMATS)} (or bf16 in a layout)")
