"""The layout in words: which layers of which part have which format."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from clefquant.recipes.formats import find_format
from clefquant.release.units import BLOCKS

_TITLES = {
    "mlp": "MLP gate/up/down_proj",
    "linear_attn": "Linear attention in_proj_qkv/in_proj_z/out_proj",
    "self_attn": "Full attention q/k/v/o_proj",
}
FORMAT_TITLES = {
    "bf16": "BF16", "fp8": "FP8", "fp8-block": "FP8 blocks", "mxfp8": "MXFP8", "int8": "INT8", "nvfp4": "NVFP4",
    "nvfp4a16": "NVFP4A16", "mxfp4": "MXFP4", "mxfp4a16": "MXFP4A16", "w4a16": "W4A16",
}  # fmt: skip
_INPUTS = {
    "per token": "inputs with one scale per token at run time",
    "per 128": "inputs with a scale per 128 values at run time",
    "per 32": "inputs quantized the same way at run time",
    "per 16, static": "inputs quantized the same way at run time, under a float32 scale found in calibration",
    "": "inputs stay in 16 bits",
}
_ELEMENTS = {"e4m3": "E4M3", "e2m1": "E2M1", "int8": "integers of 8 bits", "int4": "integers of 4 bits"}
_SCALES = {"F8_E4M3": "an E4M3 scale", "U8": "a power-of-two scale", "BF16": "a scale"}


class Part(NamedTuple):
    """One row of the layout table. ``layers``: ``0–4, 15–31``; ``units``: how many."""

    title: str
    layers: str
    format: str
    units: int


def format_note(name: str) -> str:
    """How a quantized format stores a weight and what it does with inputs, for the card."""
    fmt = find_format(name)
    if fmt.block:
        scales = f"one scale per square of {fmt.block} weights"
    elif fmt.group:
        scales = f"groups of {fmt.group} along the input with {_SCALES[fmt.scale_dtype]} each"
    else:
        scales = "one scale per output row"
    shared = (
        ", and a float32 global scale that everything a server runs as one matrix product shares (q/k/v, gate/up, "
        "in_proj_qkv/in_proj_z)"
        if fmt.global_scale
        else ""
    )
    return f"{FORMAT_TITLES[name]}: {_ELEMENTS[fmt.element]}, {scales}{shared}; {_INPUTS[fmt.input]}."


def layout_parts(units: Mapping[str, str]) -> list[Part]:
    """Rows by part and format, most frequent format first. ``units``: ``layers.N.BLOCK`` to format name."""
    rows = []
    for block, _, _ in BLOCKS:
        members: dict[str, list[int]] = {}
        for name, fmt in units.items():
            if name.endswith(f".{block}"):
                members.setdefault(fmt, []).append(int(name.split(".")[1]))
        for fmt, layers in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
            rows.append(Part(_TITLES[block], ranges(layers), FORMAT_TITLES.get(fmt, fmt), len(layers)))
    return rows


def ranges(numbers: Iterable[int]) -> str:
    """``0–4, 7, 9–11`` for the given numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


_MARKS = {
    "bf16": "·", "fp8": "8", "fp8-block": "8", "mxfp8": "8", "int8": "8", "nvfp4": "4", "nvfp4a16": "4", "mxfp4": "x",
    "mxfp4a16": "x", "w4a16": "i",
}  # fmt: skip
_LEGEND = "· BF16   8 eight bits   4 NVFP4   x MXFP4   i INT4   ? other"


def picture(units: Mapping[str, str]) -> list[str]:
    """One character per unit, layers from left to right: a row of attention blocks of either kind, a row of MLPs."""
    layers = sorted({int(name.split(".")[1]) for name in units})
    if not layers:
        return []
    rows = {"attention": ("linear_attn", "self_attn"), "mlp": ("mlp",)}
    ruler = "".join(str(layer // 10 % 10) if layer % 10 == 0 else " " for layer in layers)
    lines = [f"{'layer x10':10} {ruler.rstrip()}"]
    for title, blocks in rows.items():
        found = [next((units[n] for b in blocks if (n := f"layers.{layer}.{b}") in units), "") for layer in layers]
        lines.append(f"{title:10} {''.join(_MARKS.get(fmt, '?' if fmt else ' ') for fmt in found)}")
    return [*lines, f"{'':10} {_LEGEND}"]
