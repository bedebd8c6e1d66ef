"""Rounding the inputs of quantized linears, once per tensor.

The linears of a fused group (q/k/v, gate/up, in_proj_qkv/in_proj_z) read one tensor and round it alike; they run one
after the other. One slot remembers the last rounded input, which saves about half of the rounding and keeps one
activation alive.
"""

import weakref
from typing import Any

import torch

from clefquant.quantize.simulate import fake_quantize_input


class InputRounding:
    """Forward hooks that share their last result."""

    def __init__(self) -> None:
        self._input: weakref.ref[torch.Tensor] | None = None
        self._key: tuple[Any, ...] = ()
        self._rounded: torch.Tensor | None = None

    def attach(self, module: torch.nn.Module, scheme: Any, global_scale: torch.Tensor | None) -> None:
        """Round every input of ``module`` [..., I] by ``scheme``; ``global_scale``: [1] float32 or None."""
        key = (scheme.input_activations.model_dump_json(), None if global_scale is None else float(global_scale))

        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return (self._round(inputs[0], key, scheme, global_scale), *inputs[1:])

        module.register_forward_pre_hook(hook)

    def _round(
        self, x: torch.Tensor, key: tuple[Any, ...], scheme: Any, global_scale: torch.Tensor | None
    ) -> torch.Tensor:
        if self._rounded is None or self._input is None or self._input() is not x or self._key != key:
            self._rounded = fake_quantize_input(x, scheme, global_scale)
            self._input, self._key = weakref.ref(x), key
        return self._rounded
