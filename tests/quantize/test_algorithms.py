"""GPTQ against rounding to nearest, on the inputs it was calibrated with."""

import pytest
import torch

from clefquant.errors import InputError
from clefquant.quantize.algorithms import find_algorithm, gptq, rtn
from clefquant.recipes.layout import uniform_layout
from clefquant.release.units import LAYER_PREFIX


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4"])
def test_gptq_loses_less_of_a_layers_output(tiny, tiny_loaded, encoded, scheme):
    """Error of the first GDN block's input product, over the calibration tokens."""
    layout = uniform_layout(tiny, scheme)
    name = f"{LAYER_PREFIX}0.linear_attn.in_proj_qkv"
    module, inputs = tiny_loaded.module(name), []
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0]))
    for record in encoded:
        tiny_loaded.model(tiny_loaded.code.collate_records([record], 0, tiny_loaded.device))
    handle.remove()
    x = torch.cat(inputs)
    errors = {}
    for algorithm in (rtn, gptq):
        first = next(iter(algorithm(tiny, layout, encoded)))
        errors[algorithm] = (x @ (first.linears[name].weight.float() - module.weight).T).norm()
    assert errors[gptq] < 0.9 * errors[rtn]


def test_gptq_keeps_to_the_grid_of_its_scales(tiny, encoded):
    """Stored and dequantized weights agree: packing rounds nothing a second time."""
    for result in gptq(tiny, uniform_layout(tiny, "nvfp4"), encoded):
        shared = {
            group[0].name: {float(result.linears[m.name].tensors["weight_global_scale"]) for m in group}
            for group in result.unit.groups
        }
        assert all(len(values) == 1 for values in shared.values())
        assert result.statistics.keys() == result.linears.keys()


def test_unknown_algorithm():
    with pytest.raises(InputError, match="allowed: rtn, gptq"):
        find_algorithm("magic")


def test_gptq_without_a_set(tiny):
    with pytest.raises(InputError, match="gptq needs --calibration"):
        next(iter(gptq(tiny, uniform_layout(tiny, "fp8"), [])))
