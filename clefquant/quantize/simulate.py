"""Running a model as if some units were quantized: weights as stored, inputs rounded as the server rounds them.

Works on the loaded model in place: weights are swapped for their dequantized values and each linear rounds its input
first, by compressed-tensors' own functions. Leaving the block puts the very same weight tensors back, also after a
failure.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch

from clefquant.quantize.unit import QuantizedLinear
from clefquant.release.load import LoadedRelease


def fake_quantize_input(x: torch.Tensor, scheme: object, global_scale: torch.Tensor | None) -> torch.Tensor:
    """Round an activation [..., I] to the scheme's input format and back; same shape and dtype.

    Scales are dynamic: per token (FP8) or per group of the input axis (NVFP4 under ``global_scale``, MXFP4).
    """
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    args = scheme.input_activations  # type: ignore[attr-defined]
    if args is None or x.numel() == 0:
        return x
    scale, zero_point = compute_dynamic_scales_and_zp(x, args, None, global_scale=global_scale)
    rounded: torch.Tensor = fake_quantize(x, scale, zero_point, args, global_scale=global_scale)
    return rounded


@contextmanager
def simulated(
    loaded: LoadedRelease, linears: Mapping[str, QuantizedLinear], *, activations: bool = True
) -> Iterator[LoadedRelease]:
    """Within the block ``loaded`` answers as a checkpoint that stores ``linears`` would.

    ``linears``: full module name to its quantized form. ``activations=False`` keeps inputs in full precision
    (weight-only).
    """
    with ExitStack() as undo:
        for name, quantized in linears.items():
            undo.callback(_install(loaded.module(name), quantized, activations))
        yield loaded


def _install(module: torch.nn.Module, quantized: QuantizedLinear, activations: bool):  # type: ignore[no-untyped-def]
    source = module.weight
    assert isinstance(source, torch.nn.Parameter)
    weight = quantized.weight.to(device=source.device, dtype=source.dtype)
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    stored = quantized.tensors.get("input_global_scale")
    global_scale = None if stored is None else stored.to(source.device)
    hook = None
    if activations:
        hook = module.register_forward_pre_hook(
            lambda _, inputs: (fake_quantize_input(inputs[0], quantized.scheme, global_scale), *inputs[1:])
        )

    def restore() -> None:
        module.weight = source
        if hook is not None:
            hook.remove()

    return restore
