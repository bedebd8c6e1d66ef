"""A quantized folder in memory: equal to transformers' own loading, and to the source when nothing is quantized."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils.quantization_config import CompressedTensorsConfig

from clefquant.errors import InputError
from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.inputs import fake_quantize_input
from clefquant.quantize.model import quantize_layout
from clefquant.quantize.simulate import InputRounding
from clefquant.recipes import formats
from clefquant.recipes.layout import make_layout
from clefquant.release.load import load_release, option_logits
from clefquant.release.release import open_release
from clefquant.verify.simulated import load_simulated

FORMATS = ("fp8", "nvfp4", "mxfp4")


def probabilities(loaded, encoded):
    found = dict(option_logits(loaded, encoded))
    return torch.cat([logits.softmax(-1) for index in sorted(found) for logits in found[index]])


def test_a_bf16_release_answers_bit_for_bit_as_its_own_loader(tiny, tiny_loaded, encoded):
    with load_simulated(tiny) as loaded:
        assert torch.equal(probabilities(loaded, encoded), probabilities(tiny_loaded, encoded))


@pytest.mark.parametrize("name", FORMATS)
def test_equal_to_transformers_with_its_own_quantizer(quantized, encoded, name):
    release = quantized(name)
    config = CompressedTensorsConfig(run_compressed=False)
    reference = load_release(release, dtype=torch.bfloat16, quantization_config=config)  # keeps input rounding on
    with load_simulated(release, dtype=torch.bfloat16) as loaded:
        difference = (probabilities(loaded, encoded) - probabilities(reference, encoded)).abs().max()
    assert difference <= 1e-3, difference
    for module in reference.model.language_model.modules():
        if hasattr(module, "quantization_scheme"):
            module.quantization_enabled = False  # weight-only: the stored weights are already dequantized
    with load_simulated(release, dtype=torch.bfloat16, activations=False) as loaded:
        difference = (probabilities(loaded, encoded) - probabilities(reference, encoded)).abs().max()
    assert difference <= 1e-3, difference


def test_every_format_with_a_dynamic_input_is_read_back(nano, tmp_path):
    """Also those that do not fit the tiny model; weights as the quantizer dequantized them."""
    names = [fmt.name for fmt in formats.FORMATS if not fmt.static_input]
    units = {unit.name: names[i % len(names)] for i, unit in enumerate(nano.units)}
    layout = make_layout(nano, units)
    write_checkpoint(nano, layout, to_nearest(nano, layout, {}), tmp_path / "checkpoint")
    with load_simulated(tmp_path / "checkpoint") as loaded:
        for name, linear in quantize_layout(nano, units, {}).items():
            assert torch.equal(loaded.module(name).weight, linear.weight.float()), name


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_and_weights_matter(quantized, tiny_loaded, encoded, name):
    source = probabilities(tiny_loaded, encoded)
    with load_simulated(quantized(name)) as both, load_simulated(quantized(name), activations=False) as weights:
        assert not torch.equal(probabilities(both, encoded), probabilities(weights, encoded))
        assert not torch.equal(probabilities(weights, encoded), source)


def test_int8_tables_are_used(quantized, tiny, encoded, tmp_path):
    folder = shutil.copytree(quantized("fp8").path, tmp_path / "tables")
    shard = folder / "model.safetensors"
    weights = load_file(shard)
    tables, dequantized = {}, {}
    for table, name in (("embed_tokens", "model.language_model.embed_tokens.weight"), ("lm_head", "lm_head.weight")):
        rows = weights.pop(name).float()
        scale = rows.abs().amax(dim=1).clamp_min(1e-12) / 127
        tables[f"{table}.weight"] = (rows / scale[:, None]).round().to(torch.int8)
        tables[f"{table}.scale"] = scale
        dequantized[name] = tables[f"{table}.weight"].float() * scale[:, None]
    save_file(weights, shard)
    (folder / "clef_head").mkdir()
    save_file(tables, folder / "clef_head" / "tables_int8.safetensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for name in dequantized:
        del index["weight_map"][name]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    head = json.loads((folder / "joint_head_config.json").read_text())
    (folder / "joint_head_config.json").write_text(json.dumps({**head, "requires_clef_vllm": "0.1.0"}))
    with load_simulated(folder) as loaded, load_simulated(quantized("fp8")) as plain:
        for name, rows in dequantized.items():
            assert torch.equal(loaded.module(name.removesuffix(".weight")).weight, rows)
        difference = (probabilities(loaded, encoded) - probabilities(plain, encoded)).abs().max()
    assert 0 < difference < 0.05


def test_missing_tensors_are_named(tiny, tmp_path):
    folder = shutil.copytree(tiny.path, tmp_path / "cut")
    weights = load_file(folder / "model.safetensors")
    del weights["model.language_model.norm.weight"]
    save_file(weights, folder / "model.safetensors")
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    with (
        pytest.raises(InputError, match=r"lacks 1 tensors of the model, first model\.language_model\.norm\.weight"),
        load_simulated(folder),
    ):
        pass


def test_other_methods_and_unmatched_groups_are_refused(quantized, tmp_path):
    folder = shutil.copytree(quantized("fp8").path, tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "quark"}}))
    with pytest.raises(InputError, match="quantized by 'quark'"), load_simulated(folder):
        pass
    config["quantization_config"]["config_groups"]["group_0"]["targets"].pop()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="0 config_groups"), load_simulated(folder):
        pass
    groups = json.loads((quantized("fp8").path / "config.json").read_text())["quantization_config"]["config_groups"]
    config["quantization_config"]["config_groups"] = {"group_0": groups["group_0"], "group_1": groups["group_0"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="2 config_groups"), load_simulated(folder):
        pass


def test_an_input_is_rounded_once_for_all_that_read_it(monkeypatch, quantized):
    release = open_release(quantized("nvfp4").path)
    calls = []

    def counted(x, scheme, global_scale):
        calls.append(x.shape)
        return fake_quantize_input(x, scheme, global_scale)

    monkeypatch.setattr("clefquant.quantize.simulate.fake_quantize_input", counted)
    with load_simulated(release) as loaded:
        ids = torch.tensor([[5, 6, 7]])
        with torch.inference_mode():
            loaded.text_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    groups = 2 * 2 * loaded.text_model.config.num_hidden_layers  # two fused groups a unit, two units a layer
    assert len(calls) == groups


def test_different_scales_are_not_shared():
    from clefquant.recipes.config import scheme_of
    from clefquant.recipes.formats import find_format

    scheme = scheme_of(find_format("nvfp4"), ["Linear"])
    rounding, x = InputRounding(), torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    layers = [torch.nn.Linear(32, 8, bias=False) for _ in range(2)]
    for layer, scale in zip(layers, (300.0, 900.0), strict=True):
        rounding.attach(layer, scheme, torch.tensor([scale]))
    for layer, scale in zip(layers, (300.0, 900.0), strict=True):
        expected = torch.nn.functional.linear(fake_quantize_input(x, scheme, torch.tensor([scale])), layer.weight)
        assert torch.equal(layer(x), expected)
