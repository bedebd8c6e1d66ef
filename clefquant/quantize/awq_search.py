"""The search of AWQ's scales: llm-compressor's, with two corrections.

Inputs are rounded during the search as the server rounds them in x / s, because scales that suit the weights alone can
spread the inputs. And a scale becomes what the norm before a block can really store; see :mod:`~.smoothing`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from llmcompressor.modifiers.transform.awq import AWQModifier
from pydantic import PrivateAttr

from clefquant.quantize.inputs import fake_quantize_alone


class Norm(torch.nn.Module):
    """Stands for a norm in the search: ``weight`` is 1 + w in float32; ``dtype``: that w is stored in."""

    def __init__(self, stored: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1 + stored.float(), requires_grad=False)
        self.dtype = stored.dtype


class Search(AWQModifier):  # type: ignore[misc]
    """llm-compressor's, with inputs rounded as the server rounds them, and with scales that a norm can store."""

    _trial: tuple[float, bool] | None = PrivateAttr(None)
    _mapping: Any = PrivateAttr(None)
    _means: Any = PrivateAttr(None)

    def _compute_best_scale(self, mapping: Any, *arguments: Any) -> torch.Tensor:
        self._mapping = mapping
        scales: torch.Tensor = super()._compute_best_scale(mapping, *arguments)
        self._trial = None
        before = mapping.smooth_layer
        return storable(scales, before.weight.cpu(), before.dtype) if isinstance(before, Norm) else scales

    def _get_grid_search_params(self) -> Iterator[tuple[float, bool]]:
        self._means = self._means_of(self._mapping)
        for self._trial in super()._get_grid_search_params():
            yield self._trial

    def _run_samples(self, module: torch.nn.Module) -> list[torch.Tensor]:
        with ExitStack() as undo:
            if self._trial is not None:
                x_mean, w_mean = self._means
                for layer in self._mapping.balance_layers:
                    scheme = getattr(layer, "quantization_scheme", None)
                    if scheme is not None and scheme.input_activations is not None:
                        hook = partial(_rounded, scheme, trial_scales(x_mean, w_mean, *self._trial))
                        undo.callback(layer.register_forward_pre_hook(hook, with_kwargs=True).remove)
            outputs: list[torch.Tensor] = super()._run_samples(module)
        return outputs

    def _means_of(self, mapping: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x_sum, count = self._smooth_activation_stats[mapping.smooth_name]
        w_mean = self._compute_layer_means(mapping.balance_layers)
        return (x_sum / count).to(w_mean.device), w_mean


def trial_scales(x_mean: torch.Tensor, w_mean: torch.Tensor, ratio: float, duo: bool) -> torch.Tensor:
    """The scales [I] that llm-compressor tries for a point of its grid."""
    power = x_mean.pow(ratio)
    scales = (power / (w_mean.pow(1 - ratio) + 1e-4) if duo else power).clamp(min=1e-4)
    scales = scales / (scales.max() * scales.min()).sqrt()
    return torch.where(scales.isfinite(), scales, 1.0)


def _rounded(
    scheme: Any, scales: torch.Tensor, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...], named: dict[str, Any]
) -> tuple[tuple[torch.Tensor], dict[str, Any]]:
    """A linear's input x [..., I] as the server would see it in x / s, times s."""
    x = inputs[0] if inputs else named["input"]
    return (fake_quantize_alone(x / scales.to(x), scheme) * scales.to(x),), {}


def storable(scales: torch.Tensor, norm: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What ``norm`` [I] (1 + w, float32) is really divided by when (1 + w) / ``scales`` - 1 is stored as ``dtype``.

    1 where nothing would be left of a channel.
    """
    left = 1 + (norm / scales - 1).to(dtype).float()
    return torch.where((left == 0) | (norm == 0), 1.0, norm / left)
