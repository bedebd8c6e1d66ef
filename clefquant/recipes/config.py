"""A layout in the words of compressed-tensors (``quantization_config``) and of llm-compressor (``recipe.yaml``)."""

from collections.abc import Mapping
from typing import Any

from clefquant.errors import InputError
from clefquant.recipes.awq import SMOOTHED, awq_modifier
from clefquant.recipes.formats import Format, find_format
from clefquant.recipes.layout import quantized_linears
from clefquant.release.release import Release

MIXED = "mixed-precision"


def scheme_of(fmt: Format, targets: list[str]) -> Any:
    """compressed-tensors' ``QuantizationScheme`` of a format, its ``format`` written out."""
    from compressed_tensors.config import CompressionFormat
    from compressed_tensors.quantization import preset_name_to_scheme

    return preset_name_to_scheme(fmt.preset, targets).model_copy(update={"format": CompressionFormat(fmt.ct_format)})


def config_groups(release: Release, units: Mapping[str, str]) -> dict[str, Any]:
    """One scheme per format in use; its targets are the exact names of its linears, so each matches one group."""
    members: dict[str, list[str]] = {}
    for linear, fmt in quantized_linears(release, units):
        members.setdefault(fmt.name, []).append(linear.name)
    if not members:
        raise InputError("the layout keeps every unit in bf16: there is nothing to quantize.")
    ordered = sorted(members.items())
    return {f"group_{number}": scheme_of(find_format(name), targets) for number, (name, targets) in enumerate(ordered)}


def ignored_linears(release: Release, units: Mapping[str, str]) -> list[str]:
    """Full names of every matrix module that stays as it is; embeddings are no Linear and need no entry."""
    quantized = {linear.name for linear, _ in quantized_linears(release, units)}
    names = (name.removesuffix(".weight") for name, info in release.tensors.items() if _is_linear(name, info.shape))
    return [name for name in names if name not in quantized]


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    return name.endswith(".weight") and len(shape) == 2 and "embed" not in name.rsplit(".", 2)[-2]


def quantization_config(release: Release, units: Mapping[str, str]) -> dict[str, Any]:
    """What ``config.json`` holds: a ``format`` in every group, exact targets, every other linear in ``ignore``."""
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus

    groups = config_groups(release, units)
    formats = {scheme.format.value for scheme in groups.values()}
    config = QuantizationConfig(
        config_groups=groups,
        format=formats.pop() if len(formats) == 1 else MIXED,
        quantization_status=QuantizationStatus.COMPRESSED,
        ignore=ignored_linears(release, units),
    )
    found: dict[str, Any] = config.model_dump(mode="json", exclude={"quant_method"})
    return {"quant_method": "compressed-tensors", **found}


def recipe_yaml(release: Release, units: Mapping[str, str], algorithm: str = "rtn") -> str:
    """llm-compressor's own recipe of the same quantization, but for the choice of block scales, which it cannot say."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.recipe import Recipe

    # the enum would be written as a Python object that no safe loader reads
    groups = {
        name: scheme.model_copy(update={"format": scheme.format.value})
        for name, scheme in config_groups(release, units).items()
    }
    modifier = GPTQModifier if algorithm == "gptq" else QuantizationModifier
    modifiers = [modifier(config_groups=groups, ignore=ignored_linears(release, units))]
    if algorithm in SMOOTHED:
        modifiers.insert(0, awq_modifier(algorithm, release.units, units))
    text: str = Recipe.from_modifiers(modifiers).yaml()
    return text
