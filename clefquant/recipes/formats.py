"""The weight formats a unit can have: one visible row each.

Bits count the weight, its group scale and nothing else (per-row and per-tensor scales are exact in
:meth:`Format.tensor_bytes`). ``ct_format`` is written explicitly into every config group, because the inferred
one changed between compressed-tensors releases.
"""

from dataclasses import dataclass

from clefquant.errors import InputError
from clefquant.release.units import Linear


@dataclass(frozen=True)
class Format:
    """One way to store a Linear and to quantize its input.

    ``weight_bits``/``scale_bits``: of one element and of one scale; ``group``: weights per scale along the input
    axis, 0 = one scale per output row. ``global_scale``: a float32 divisor per fused group (and one for the input
    when ``static_input``). ``preset``: llm-compressor's name of the scheme.
    """

    name: str
    preset: str
    ct_format: str
    weight_bits: int
    scale_bits: int
    group: int
    global_scale: bool
    static_input: bool
    note: str

    def tensor_bytes(self, linear: Linear) -> int:
        """Bytes of every tensor that stores ``linear`` in this format."""
        scales = linear.out_features * (linear.in_features // self.group if self.group else 1)
        extra = 4 * (int(self.global_scale) + int(self.static_input))
        return (linear.weights * self.weight_bits + scales * self.scale_bits) // 8 + extra

    def obstacle(self, linear: Linear) -> str | None:
        """Why this format cannot store ``linear``, or None."""
        if self.group and linear.in_features % self.group:
            return f"{linear.name}: input size {linear.in_features} is not a multiple of {self.name}'s {self.group}"
        return None


BF16 = Format("bf16", "", "dense", 16, 0, 0, False, False, "as in the source")
FORMATS: tuple[Format, ...] = (
    Format("fp8", "FP8_DYNAMIC", "float-quantized", 8, 16, 0, False, False, "E4M3, per row; input per token"),
    Format("nvfp4", "NVFP4", "nvfp4-pack-quantized", 4, 8, 16, True, True, "E2M1, E4M3 scale per 16"),
    Format("mxfp4", "MXFP4", "mxfp4-pack-quantized", 4, 8, 32, False, False, "E2M1, power-of-two scale per 32"),
)


def find_format(name: str) -> Format:
    """The format called ``name``; InputError lists what is allowed."""
    for candidate in (BF16, *FORMATS):
        if candidate.name == name:
            return candidate
    raise InputError(f"unknown format {name!r}; allowed: {', '.join(f.name for f in FORMATS)} (or bf16 in a layout)")
