"""Which tensors activation-aware weight quantization (AWQ) scales, which it changes, and its recipe."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from clefquant.errors import InputError
from clefquant.recipes.formats import Format, find_format
from clefquant.release.units import LAYER_PREFIX, Unit, UnitKind

#: Per kind of unit: where its inputs are divided by s, and who is multiplied by s in return; names within a layer, in
#: llm-compressor's order for Qwen3.5. ``v_proj`` before ``o_proj`` is left out there and here: with fewer key and value
#: heads than query heads the shapes do not allow it.
MAPPINGS: dict[UnitKind, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "attention": (("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),),
    "gdn": (
        (
            "input_layernorm",
            ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"),
        ),
    ),
    "mlp": (
        ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ("mlp.up_proj", ("mlp.down_proj",)),
    ),
}
#: Algorithm to the kinds of unit it scales.
SMOOTHED: dict[str, tuple[UnitKind, ...]] = {"awq": tuple(MAPPINGS), "awq-mlp": ("mlp",)}


def smoothed_units(algorithm: str, units: Iterable[Unit], formats: Mapping[str, str]) -> dict[Unit, Format]:
    """The units that ``algorithm`` scales, with their format: those stored in 4 bits. None unless it is an AWQ."""
    kinds = SMOOTHED.get(algorithm, ())
    found = {unit: find_format(formats[unit.name]) for unit in units if unit.kind in kinds}
    return {unit: fmt for unit, fmt in found.items() if fmt.four_bit}


def check_smoothed(algorithm: str, units: Iterable[Unit], formats: Mapping[str, str]) -> None:
    """InputError when ``algorithm`` has nothing to scale."""
    if not smoothed_units(algorithm, units, formats):
        raise InputError(
            f"{algorithm} scales the weights of 4-bit units, but the layout keeps none of its "
            f"{', '.join(SMOOTHED[algorithm])} units in 4 bits; take --algorithm rtn, or a 4-bit format."
        )


def touched(unit: Unit) -> tuple[str, ...]:
    """Names within the layer of every module whose weight scaling ``unit`` changes."""
    return tuple(dict.fromkeys(name for before, after in MAPPINGS[unit.kind] for name in (before, *after)))


def changed_tensors(unit: Unit) -> tuple[str, ...]:
    """Full names of the tensors that scaling ``unit`` changes beside the weights of its own linears."""
    own = {linear.name for linear in unit.linears}
    names = (f"{LAYER_PREFIX}{unit.layer}.{name}" for name in touched(unit))
    return tuple(f"{name}.weight" for name in names if name not in own)


def changed_by(algorithm: str, units: Iterable[Unit], formats: Mapping[str, str]) -> dict[str, str]:
    """Full names of all tensors that are not quantized and may still differ from the source, with the reason."""
    return {
        name: f"scaled by {algorithm} together with {unit.name}"
        for unit in smoothed_units(algorithm, units, formats)
        for name in changed_tensors(unit)
    }


def awq_modifier(algorithm: str, units: Iterable[Unit], formats: Mapping[str, str]) -> Any:
    """llm-compressor's modifier of the same scaling, its layers written out."""
    from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier

    layers: dict[UnitKind, list[str]] = {}
    for unit in smoothed_units(algorithm, units, formats):
        layers.setdefault(unit.kind, []).append(str(unit.layer))

    def pattern(numbers: list[str], name: str) -> str:
        return rf"re:.*layers\.({'|'.join(numbers)})\.{re.escape(name)}$"

    return AWQModifier(
        offload_device=None,  # its default is an object that no safe loader reads
        mappings=[
            AWQMapping(pattern(numbers, before), [pattern(numbers, name) for name in after])
            for kind, numbers in layers.items()
            for before, after in MAPPINGS[kind]
        ],
    )
