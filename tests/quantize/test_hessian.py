"""The Hessian that GPTQ rounds by."""

import pytest
import torch

from clefquant.quantize.hessian import HessianCollector
from clefquant.quantize.inputs import fake_quantize_alone, fake_quantize_input
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import find_format


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8", "mxfp4a16", "w4a16"])
def test_it_is_that_of_the_inputs_the_server_sees(name):
    """2 x xᵀ over rounded tokens where the format rounds inputs, over the tokens themselves where it does not."""
    batches = [torch.randn(30, 64), torch.randn(12, 64)]
    fmt = find_format(name)
    collector = HessianCollector(fmt)
    for batch in batches:
        collector.add(batch)
    seen = [
        fake_quantize_alone(batch[None], scheme_of(fmt, ["Linear"]))[0] if fmt.input else batch for batch in batches
    ]
    assert all(torch.equal(a, b) == (not fmt.input) for a, b in zip(seen, batches, strict=True))
    x = torch.cat(seen)
    torch.testing.assert_close(collector.result(), 2 * x.T @ x / len(x))


def test_a_batch_alone_is_rounded_by_its_own_largest_value():
    x, scheme = torch.randn(1, 20, 64), scheme_of(find_format("nvfp4"), ["Linear"])
    assert torch.equal(
        fake_quantize_alone(x, scheme), fake_quantize_input(x, scheme, 6 * 448 / x.abs().max().reshape(1))
    )
