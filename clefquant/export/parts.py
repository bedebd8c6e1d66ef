"""The layout in words: which layers of which part have which format."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from clefquant.release.units import BLOCKS

_TITLES = {
    "mlp": "MLP gate/up/down_proj",
    "linear_attn": "Linear attention in_proj_qkv/in_proj_z/out_proj",
    "self_attn": "Full attention q/k/v/o_proj",
}
FORMAT_TITLES = {"bf16": "BF16", "fp8": "FP8", "nvfp4": "NVFP4", "mxfp4": "MXFP4"}


class Part(NamedTuple):
    """One row of the layout table. ``layers``: ``0–4, 15–31``; ``units``: how many."""

    title: str
    layers: str
    format: str
    units: int


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


_MARKS = {"bf16": "·", "fp8": "8", "mxfp8": "8", "int8": "8", "nvfp4": "4", "mxfp4": "x"}
_LEGEND = "· BF16   8 eight bits   4 NVFP4   x MXFP4   ? other"


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
