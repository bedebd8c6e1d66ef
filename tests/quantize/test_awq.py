"""AWQ in one layer at a time: what it keeps, what it changes, and that it is llm-compressor's."""

import json
import re

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from clefquant.errors import InputError
from clefquant.quantize.algorithms import find_algorithm
from clefquant.quantize.awq_search import storable, trial_scales
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.layerwise import Layerwise
from clefquant.quantize.smoothing import smooth
from clefquant.recipes.awq import MAPPINGS, changed_by, smoothed_units
from clefquant.recipes.layout import make_layout, uniform_layout
from clefquant.release.load import load_release
from clefquant.release.units import LAYER_PREFIX


def _outputs(step):
    """What the layer gives for every batch."""
    found = []
    handle = step.module.register_forward_hook(lambda _, inputs, output: found.append(output[..., :, :].clone()))
    step.run()
    handle.remove()
    return found


@pytest.mark.parametrize("scheme", ["nvfp4a16", "mxfp4"])
def test_the_layer_still_computes_the_same(tiny, encoded, scheme):
    """Every layer, both kinds of mixer: scaled weights, unquantized, up to the rounding of stored tensors."""
    layout = uniform_layout(tiny, scheme)
    for step in Layerwise(tiny, encoded[:3]).steps():
        before, source = _outputs(step), dict(step.source)
        units = [unit for unit in tiny.units if unit.layer == step.number]
        smooth(step, smoothed_units("awq", units, layout.units))
        for expected, found in zip(before, _outputs(step), strict=True):
            assert (found - expected).norm() < 0.01 * expected.norm()
        norm = f"{LAYER_PREFIX}{step.number}.post_attention_layernorm.weight"
        assert (step.source[norm].float() - source[norm].float()).abs().max() > 0.05  # it did scale


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1.0, 3.0, width=32), st.floats(0.01, 100.0)), min_size=1, max_size=8))
def test_what_is_taken_from_a_norm_is_given_to_the_weights(channels):
    w, scales = torch.tensor(channels, dtype=torch.float32).T
    norm = 1 + w.bfloat16().float()
    given_ = storable(scales, norm, torch.bfloat16)
    stored = (norm / given_ - 1).bfloat16().float()
    torch.testing.assert_close((1 + stored) * given_, norm, rtol=1e-5, atol=1e-6)
    assert (given_ > 0).all()


def test_a_channel_that_would_vanish_keeps_its_scale():
    norm = torch.tensor([0.0, 2.0**-8, 1.5])
    found = storable(torch.tensor([3.0, 4.0, 2.0]), norm, torch.bfloat16)
    assert found.tolist() == [1.0, 1.0, 2.0]


def _leaf(pattern):
    return re.search(r"\w+$", pattern.rstrip("$"))[0]


def test_the_search_and_mappings_are_llm_compressors(tiny, encoded):
    """The first layer of the whole model through its modifier, one record at a time, its own mappings and norms."""
    from llmcompressor.core import create_session
    from llmcompressor.modeling.offset_norm import norm_calibration_context
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier, get_layer_mappings_from_model

    from clefquant.quantize import smoothing
    from clefquant.recipes.config import scheme_of
    from clefquant.recipes.formats import find_format

    few, fmt = encoded[:2], find_format("nvfp4a16")
    loaded = load_release(tiny)
    model = loaded.model.language_model
    mappings = get_layer_mappings_from_model(model)
    own = [*MAPPINGS["attention"], *MAPPINGS["gdn"], *MAPPINGS["mlp"]]
    inferred = [(_leaf(m.smooth_layer), [_leaf(name) for name in m.balance_layers]) for m in mappings]
    assert inferred == [(_leaf(before), [_leaf(name) for name in after]) for before, after in own]
    first = [unit for unit in tiny.units if unit.layer == 0]
    with (
        smoothing._fitted(),
        smoothing.fused_gdn_inputs(),
        create_session() as session,
        norm_calibration_context(model),
    ):
        groups = {u.name: scheme_of(fmt, [linear.name for linear in u.linears]) for u in first}
        smoothing.apply_quantization_config(
            model, QuantizationModifier(config_groups=groups).resolved_config, show_progress=False
        )
        model.apply(smoothing.disable_quantization)
        modifier = AWQModifier(mappings=mappings, offload_device=None)
        session.state.model = model
        modifier.on_calibration_start(session.state, None)
        for record in few:
            loaded.model(loaded.code.collate_records([record], 0, loaded.device))
        modifier.on_sequential_epoch_end(session.state, None)
        modifier.on_calibration_end(session.state, None)
    steps = Layerwise(tiny, few).steps()
    step = next(steps)
    smooth(step, dict.fromkeys(first, fmt))
    for name, _ in MAPPINGS["gdn"] + MAPPINGS["mlp"][:1]:
        full = f"{LAYER_PREFIX}0.{name}.weight"
        theirs = loaded.module(full.removesuffix(".weight")).weight
        torch.testing.assert_close(step.source[full].float(), theirs, rtol=0, atol=2**-7)
    down = f"{LAYER_PREFIX}0.mlp.down_proj"
    torch.testing.assert_close(step.source[f"{down}.weight"].float(), loaded.module(down).weight, rtol=0.02, atol=1e-4)


def test_a_grid_point_is_llm_compressors():
    """Its own normalization: the largest and the smallest scale are each other's inverse."""
    scales = trial_scales(torch.tensor([1.0, 4.0, 16.0]), torch.tensor([0.5, 0.5, 0.5]), 0.5, False)
    torch.testing.assert_close(scales, torch.tensor([0.5, 1.0, 2.0]))


def test_a_checkpoint_holds_the_changed_tensors_and_says_so(tiny, encoded, tmp_path):
    names = [unit.name for unit in tiny.units]
    layout = make_layout(tiny, {name: ("nvfp4", "mxfp4", "fp8", "bf16")[i % 4] for i, name in enumerate(names)})
    results = list(find_algorithm("awq")(tiny, layout, encoded[:3]))
    out = write_checkpoint(tiny, layout, iter(results), tmp_path / "out", algorithm="awq")
    stored, source = load_file(out / "model.safetensors"), load_file(tiny.path / "model.safetensors")
    changed = {name: tensor for result in results for name, tensor in result.changed.items()}
    assert changed.keys() == changed_by("awq", tiny.units, layout.units).keys()
    for name, tensor in source.items():
        if name in stored and stored[name].dtype == tensor.dtype and name not in changed:
            assert torch.equal(stored[name], tensor), name
    for name, tensor in changed.items():
        assert torch.equal(stored[name], tensor)
    assert any(not torch.equal(tensor, source[name]) for name, tensor in changed.items())
    described = json.loads((out / "checkpoint.json").read_text())
    assert described["changed"].keys() == changed.keys()
    assert described["tensors"]["changed"] == len(changed)
    for result in results:
        if layout.units[result.unit.name] == "nvfp4":
            for group in result.unit.groups:
                assert len({float(result.linears[m.name].tensors["weight_global_scale"]) for m in group}) == 1
    recipe = yaml.safe_load((out / "recipe.yaml").read_text())["default_stage"]["default_modifiers"]
    assert list(recipe) == ["AWQModifier", "QuantizationModifier"]


def test_what_awq_needs(tiny, encoded):
    with pytest.raises(InputError, match="awq-mlp scales the weights of 4-bit units"):
        next(iter(find_algorithm("awq-mlp")(tiny, uniform_layout(tiny, "fp8"), encoded)))
    with pytest.raises(InputError, match="awq needs --calibration"):
        next(iter(find_algorithm("awq")(tiny, uniform_layout(tiny, "mxfp4"), [])))
