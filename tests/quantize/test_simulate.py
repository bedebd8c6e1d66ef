"""Simulation: the very same weights come back, and the loader's own simulation gives the same answers."""

import pytest
import torch

from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.model import quantize_layout
from clefquant.quantize.simulate import simulated
from clefquant.quantize.statistics import collect_statistics
from clefquant.recipes.layout import make_layout
from clefquant.release.load import LoadedRelease, option_logits

FORMATS = ("nvfp4", "fp8", "mxfp4")


@pytest.fixture(scope="module")
def statistics(tiny_loaded, encoded):
    return collect_statistics(tiny_loaded.release, encoded)


@pytest.fixture(scope="module")
def mixed(tiny):
    return make_layout(tiny, {unit.name: FORMATS[i % 3] for i, unit in enumerate(tiny.units)})


def test_weights_come_back_after_a_failure(tiny, tiny_loaded, statistics, mixed):
    quantized = quantize_layout(tiny, mixed.units, {name: s.amax for name, s in statistics.items()})
    before = {name: tiny_loaded.module(name).weight for name in quantized}
    with pytest.raises(KeyboardInterrupt), simulated(tiny_loaded, quantized):
        assert any(not torch.equal(tiny_loaded.module(name).weight, before[name]) for name in quantized)
        raise KeyboardInterrupt
    for name, weight in before.items():
        module = tiny_loaded.module(name)
        assert module.weight is weight
        assert not module._forward_pre_hooks


def test_equals_the_release_loader(tiny, tiny_loaded, encoded, statistics, mixed, folder):
    from compressed_tensors.quantization import disable_quantization
    from transformers import CompressedTensorsConfig

    write_checkpoint(tiny, mixed, to_nearest(tiny, mixed, statistics), folder)
    model, processor = tiny_loaded.code.load_release_model(
        folder, device="cpu", dtype=torch.float32, quantization_config=CompressedTensorsConfig(run_compressed=False)
    )
    model.float()  # four-bit weights are decompressed to bfloat16
    reloaded = LoadedRelease(tiny, model.eval(), processor, tiny_loaded.code)
    quantized = quantize_layout(tiny, mixed.units, {name: s.amax for name, s in statistics.items()})
    for activations in (True, False):
        if not activations:
            model.apply(disable_quantization)
        theirs = dict(option_logits(reloaded, encoded))
        with simulated(tiny_loaded, quantized, activations=activations):
            ours = dict(option_logits(tiny_loaded, encoded))
        for index, questions in ours.items():
            for a, b in zip(questions, theirs[index], strict=True):
                assert (a.softmax(0) - b.softmax(0)).abs().max() <= 1e-5
