"""Layouts: sizes, refusals, and the configuration they become."""

import json

import pytest

from clefquant.errors import InputError
from clefquant.recipes.config import quantization_config, recipe_yaml
from clefquant.recipes.layout import make_layout, read_layout, uniform_layout


def test_bytes_of_bf16_are_the_source(tiny):
    layout = uniform_layout(tiny, "bf16")
    assert (layout.bytes, layout.bits_per_weight) == (tiny.backbone_bytes, 16)


@pytest.mark.parametrize(("scheme", "bits"), [("nvfp4", 4.5), ("mxfp4", 4.25), ("fp8", 8)])
def test_bits(tiny, scheme, bits):
    assert (
        bits <= uniform_layout(tiny, scheme).bits_per_weight < bits + 0.4
    )  # rows' and tensors' scales weigh much in tiny


def test_written_layout_is_read_back(tiny, tmp_path):
    units = uniform_layout(tiny, "nvfp4").units
    layout = make_layout(tiny, units, budget="5.2bits", measured={"kl": 0.01})
    layout.write(tmp_path / "layout.json")
    assert read_layout(tmp_path / "layout.json", tiny) == layout
    assert (layout.budget, layout.measured) == ("5.2bits", {"kl": 0.01})


def test_formats_by_how_often_they_are_used(tiny):
    names = [unit.name for unit in tiny.units]
    units = dict.fromkeys(names, "fp8") | {names[0]: "nvfp4", names[1]: "mxfp4"}
    assert make_layout(tiny, units).formats() == ("fp8", "mxfp4", "nvfp4")


@pytest.mark.parametrize("units", [None, [], "fp8", {"layers.0.mlp": 8}, {"layers.0.mlp": None}])
def test_a_file_without_units(tiny, tmp_path, units):
    (tmp_path / "layout.json").write_text(json.dumps({"kind": "layout", "schema_version": 1, "units": units}))
    with pytest.raises(InputError, match="has no units"):
        read_layout(tmp_path / "layout.json", tiny)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda units: units.pop("layers.0.mlp"), "leaves out layers.0.mlp"),
        (lambda units: units.update({"layers.9.mlp": "fp8"}), "names layers.9.mlp"),
        (lambda units: units.update({"layers.0.mlp": "fp3"}), "unknown format .fp3.; allowed: fp8, "),
    ],
)
def test_refusals(tiny, change, message):
    units = {unit.name: "fp8" for unit in tiny.units}
    change(units)
    with pytest.raises(InputError, match=message):
        make_layout(tiny, units)


def test_every_linear_is_in_one_group_or_ignored(tiny):
    formats = ("fp8", "nvfp4", "mxfp4", "bf16")
    units = {unit.name: formats[i % 4] for i, unit in enumerate(tiny.units)}
    config = quantization_config(tiny, units)
    json.dumps(config)
    assert config["format"] == "mixed-precision"
    assert {group["format"] for group in config["config_groups"].values()} == {
        "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
    }  # fmt: skip
    named = [target for group in config["config_groups"].values() for target in group["targets"]] + config["ignore"]
    assert len(named) == len(set(named))
    quantizable = {linear.name for unit in tiny.units for linear in unit.linears}
    assert quantizable <= set(named)
    assert {"lm_head", "model.language_model.layers.0.linear_attn.in_proj_a"} <= set(config["ignore"])
    assert any(name.startswith("model.visual.") for name in config["ignore"])


def test_recipe_is_one_that_llm_compressor_reads(tiny, tmp_path):
    from llmcompressor.recipe import Recipe

    (tmp_path / "recipe.yaml").write_text(recipe_yaml(tiny, uniform_layout(tiny, "nvfp4").units))
    (modifier,) = Recipe.create_instance(str(tmp_path / "recipe.yaml")).modifiers
    assert modifier.resolved_config.config_groups["group_0"].weights.group_size == 16


def test_the_recipe_names_the_algorithm(tiny):
    import yaml

    units = uniform_layout(tiny, "mxfp4").units
    kinds = {
        name: list(yaml.safe_load(recipe_yaml(tiny, units, name))["default_stage"]["default_modifiers"])
        for name in ("rtn", "gptq", "awq")
    }
    assert kinds == {
        "rtn": ["QuantizationModifier"], "gptq": ["GPTQModifier"], "awq": ["AWQModifier", "QuantizationModifier"],
    }  # fmt: skip


def test_nothing_to_quantize(tiny):
    with pytest.raises(InputError, match="nothing to quantize"):
        quantization_config(tiny, uniform_layout(tiny, "bf16").units)
