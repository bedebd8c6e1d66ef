"""The input of a linear as the server rounds it."""

from typing import Any

import torch

from clefquant.quantize.kernels import round_input, rounding_of


def fake_quantize_input(x: torch.Tensor, scheme: Any, global_scale: torch.Tensor | None) -> torch.Tensor:
    """Round an activation [..., I] to the scheme's input format and back; same shape and dtype.

    Scales are dynamic: per token (FP8) or per group of the input axis (NVFP4 under ``global_scale``, MXFP4). Bit for
    bit what compressed-tensors computes, which is asked itself where :mod:`clefquant.quantize.kernels` has no way.
    """
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    args = scheme.input_activations
    if args is None or x.numel() == 0:
        return x
    if (rounding := rounding_of(args, x, global_scale)) is not None:
        return round_input(x, rounding, global_scale)
    scale, zero_point = compute_dynamic_scales_and_zp(x, args, None, global_scale=global_scale)
    rounded: torch.Tensor = fake_quantize(x, scale, zero_point, args, global_scale=global_scale)
    return rounded


def fake_quantize_alone(x: torch.Tensor, scheme: Any) -> torch.Tensor:
    """The same [..., I] while the set's largest input is not known yet: a static global scale is that of ``x`` alone,
    which changes how e4m3 rounds block scales and nothing else.
    """
    from compressed_tensors.quantization.utils import generate_gparam

    args, shared = scheme.input_activations, None
    if args is not None and args.strategy == "tensor_group":
        amax = x.abs().amax().reshape(1)
        shared = generate_gparam(-amax, amax)
    return fake_quantize_input(x, scheme, shared)
