"""GPTQ's second-order information, and its rounding by llm-compressor.

The Hessian of a linear's output error is H = 2 X Xᵀ over its inputs X [I, T], as the server will round them: columns
make up for each other's errors only as far as rounded inputs still move together. llm-compressor takes inputs as they
are and divides by the number of records; we divide by tokens, which only rescales H and leaves the result the same.
"""

from typing import Any

import torch

from clefquant.quantize.inputs import fake_quantize_alone
from clefquant.quantize.ranks import total
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import Format


class HessianCollector:
    """Sum of 2 x xᵀ over token vectors, float32 [I, I] on the inputs' device."""

    def __init__(self, fmt: Format) -> None:
        """Nothing seen yet. ``fmt``: of the linear that reads the input."""
        self._scheme = scheme_of(fmt, ["Linear"]) if fmt.input else None
        self._sum: torch.Tensor | None = None
        self._tokens = 0

    def add(self, x: torch.Tensor) -> None:
        """Add token vectors [T, I]."""
        if self._scheme is not None:
            x = fake_quantize_alone(x[None], self._scheme)[0]  # one scale a token needs three dimensions
        wide = x.float()
        product = 2 * (wide.T @ wide)
        self._sum = product if self._sum is None else self._sum.add_(product)
        self._tokens += len(x)

    def result(self) -> torch.Tensor:
        """The mean [I, I] over everything added, by all processes."""
        assert self._sum is not None
        return total(self._sum) / total(torch.tensor(self._tokens, device=self._sum.device))


def round_by_gptq(leaf: Any, hessian: torch.Tensor) -> None:
    """Round ``leaf.weight`` [O, I] onto its grid by GPTQ; its observer has seen the weight. The source
    weight stays as it is.

    ``leaf``: a Linear that llm-compressor's modifier has prepared. A Hessian that cannot be inverted falls back to
    nearest.
    """
    from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

    found = leaf.weight_observer.get_qparams()
    shared = found["global_scale"]
    arguments = leaf.quantization_scheme.weights
    rounded, _, _ = quantize_weight(
        weights=leaf.weight.detach().float()[None],
        hessians=hessian.clone()[None],
        scale=found["scale"][None],
        zero_point=found["zero_point"][None],
        global_scale=None if shared is None else shared.reshape(-1)[:1],
        quant_args=arguments,
    )
    leaf.weight = torch.nn.Parameter(rounded[0].to(leaf.weight.dtype), requires_grad=False)
    leaf.weight_scale.data.copy_(found["scale"])
    if shared is not None:
        leaf.weight_global_scale.data.copy_(shared)
