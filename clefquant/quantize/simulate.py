"""Running a model as if some units were quantized: weights as stored, inputs rounded as the server rounds them.

Works on the loaded model in place: weights are swapped for their dequantized values and each linear rounds its input
first. Leaving the block puts the very same weight tensors back, also after a failure.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from clefquant.quantize.inputs import fake_quantize_input
from clefquant.quantize.unit import QuantizedLinear
from clefquant.release.load import LoadedRelease


class InputRounding:
    """Forward hooks that round inputs, each tensor once.

    The linears of a fused group (q/k/v, gate/up, in_proj_qkv/in_proj_z) read one tensor, round it alike and run one
    after the other. One slot remembers the last rounded input: half of the rounding is saved and one activation kept.
    """

    def __init__(self) -> None:
        self._input: weakref.ref[torch.Tensor] | None = None
        self._key: tuple[str, float | None] = ("", None)
        self._rounded: torch.Tensor | None = None

    def attach(self, module: torch.nn.Module, scheme: Any, global_scale: torch.Tensor | None) -> RemovableHandle:
        """Round every input of ``module`` [..., I] by ``scheme``; ``global_scale``: [1] float32 or None."""
        key = (scheme.input_activations.model_dump_json(), None if global_scale is None else float(global_scale))

        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            x = inputs[0]
            if self._rounded is None or self._input is None or self._input() is not x or self._key != key:
                self._rounded = fake_quantize_input(x, scheme, global_scale)
                self._input, self._key = weakref.ref(x), key
            return (self._rounded, *inputs[1:])

        return module.register_forward_pre_hook(hook)


@contextmanager
def simulated(
    loaded: LoadedRelease, linears: Mapping[str, QuantizedLinear], *, activations: bool = True
) -> Iterator[LoadedRelease]:
    """Within the block ``loaded`` answers as a checkpoint that stores ``linears`` would.

    ``linears``: full module name to its quantized form. ``activations=False`` keeps inputs in full precision
    (weight-only).
    """
    rounding = InputRounding()
    with ExitStack() as undo:
        for name, quantized in linears.items():
            undo.callback(_install(loaded.module(name), quantized, rounding if activations else None))
        yield loaded


def _install(module: torch.nn.Module, quantized: QuantizedLinear, rounding: InputRounding | None) -> Callable[[], None]:
    source = module.weight
    assert isinstance(source, torch.nn.Parameter)
    weight = quantized.weight.to(device=source.device, dtype=source.dtype)
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    handle = None
    if rounding is not None and quantized.scheme.input_activations is not None:
        stored = quantized.tensors.get("input_global_scale")
        handle = rounding.attach(module, quantized.scheme, None if stored is None else stored.to(source.device))

    def restore() -> None:
        module.weight = source
        if handle is not None:
            handle.remove()

    return restore
