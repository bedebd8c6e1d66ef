"""llm-compressor observers that lead its own arithmetic to the scales of :mod:`clefquant.quantize.scales`.

An observer reports a range per block; compressed-tensors turns it into a scale. For MXFP4 a range that is a power of
two becomes exactly that exponent. Imported when one of them is needed: llm-compressor takes seconds to import.
"""

from typing import Any, ClassVar

import torch
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from llmcompressor.observers import Observer
from llmcompressor.observers.base import QParamsDict
from llmcompressor.observers.min_max import MemorylessMinMaxObserver


def power_below(amax: torch.Tensor) -> torch.Tensor:
    """The largest power of two that is not above ``amax``; 0 for 0. Exact in every floating dtype."""
    mantissa, exponent = torch.frexp(amax)  # mantissa in [0.5, 1)
    return torch.ldexp(torch.where(amax > 0, 0.5, 0.0).to(mantissa), exponent)


def power_above(amax: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is not below ``amax``; 0 for 0."""
    below = power_below(amax)
    return torch.where(below == amax, below, 2 * below)


class _Ranged(MemorylessMinMaxObserver):  # type: ignore[misc]
    """Reports ``of(largest absolute value)`` as the symmetric range of every block."""

    def of(self, amax: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def update_statistics_from_observed(self, observed: torch.Tensor) -> None:
        """``observed``: [1, O, G, size]."""
        self.max_vals = self.of(observed.abs().amax(dim=(0, -1)))
        self.min_vals = -self.max_vals


@Observer.register("clefquant-mxfp4-floor")
class _Floor(_Ranged):
    def of(self, amax: torch.Tensor) -> torch.Tensor:
        return power_below(amax)


@Observer.register("clefquant-mxfp4-ceil")
class _Ceil(_Ranged):
    def of(self, amax: torch.Tensor) -> torch.Tensor:
        return power_above(amax)


class _LeastError(MemorylessMinMaxObserver):  # type: ignore[misc]
    """Takes per block the one of two ranges that leaves less squared error; the first on a tie.

    The error is that of the stored numbers: scales rounded as stored, products in float32 as kernels compute them.
    The global scale is that of the plain range, so a block is never worse than with the first range alone.
    """

    _stats_attrs: ClassVar[list[str]] = [*MemorylessMinMaxObserver._stats_attrs, "observed"]

    def ranges(self, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def update_statistics_from_observed(self, observed: torch.Tensor) -> None:
        """``observed``: [1, O, G, size]."""
        super().update_statistics_from_observed(observed)
        self.observed = observed[0]

    @torch.no_grad()
    def get_qparams(self) -> QParamsDict:
        """Scale and zero point [O, G], and the fused group's global scale [1] of NVFP4."""
        shared = self.get_global_scale()
        (first, zero_point), (second, _) = (
            calculate_qparams(-amax, amax, self.args, global_scale=shared)
            for amax in self.ranges(torch.maximum(self.max_vals, -self.min_vals))
        )
        worse = self._error(first, zero_point, shared) > self._error(second, zero_point, shared)
        self.delete_statistics()
        return {"scale": torch.where(worse, second, first), "zero_point": zero_point, "global_scale": shared}

    def _error(self, scale: torch.Tensor, zero_point: torch.Tensor, shared: Any) -> torch.Tensor:
        """Squared error of every block [O, G]."""
        codes = quantize(self.observed.flatten(-2), scale, zero_point, self.args, global_scale=shared)
        stored = dequantize(codes.float(), scale.float(), args=self.args, global_scale=shared)
        exact = self.observed.float()
        error: torch.Tensor = (stored.view_as(exact) - exact).square().sum(-1)
        return error


@Observer.register("clefquant-nvfp4-four-over-six")
class _FourOverSix(_LeastError):
    def ranges(self, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return amax, 1.5 * amax


@Observer.register("clefquant-mxfp4-least-error")
class _LeastErrorPower(_LeastError):
    def ranges(self, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        below = power_below(amax)
        return below, 2 * below
