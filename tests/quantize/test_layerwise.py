"""One layer at a time computes what the whole model computes, bit for bit, in RAM and from disk."""

import pytest
import torch

from clefquant.quantize.layerwise import Layerwise
from clefquant.release.load import option_logits


@pytest.fixture(scope="module")
def whole(tiny_loaded, encoded):
    """Outputs of every layer of the whole model, batch by batch."""
    outputs: dict[int, list[torch.Tensor]] = {}
    layers = tiny_loaded.text_model.layers
    handles = [
        layer.register_forward_hook(lambda _, __, out, n=n: outputs.setdefault(n, []).append(out))
        for n, layer in enumerate(layers)
    ]
    list(option_logits(tiny_loaded, encoded))
    for handle in handles:
        handle.remove()
    return outputs


@pytest.mark.parametrize("cache_bytes", [1 << 30, 0], ids=["in memory", "on disk"])
def test_equals_the_whole_model(tiny, encoded, whole, cache_bytes):
    seen = []
    for step in Layerwise(tiny, encoded, cache_bytes=cache_bytes).steps():
        got = []
        handle = step.module.register_forward_hook(lambda _, __, out, got=got: got.append(out))
        step.run()
        handle.remove()
        assert all(torch.equal(a, b) for a, b in zip(got, whole[step.number], strict=True))
        seen.append(step.number)
    assert seen == list(whole)
