"""Quantizing one unit: source weights in, stored tensors and their dequantized values out.

llm-compressor's ``QuantizationModifier`` does it, on a module that holds the unit's linears alone, so that the bits
are those of its ``oneshot`` over the whole model while one unit is in memory. The global scale of a static input
comes from the statistics of a separate calibration pass (:mod:`clefquant.quantize.statistics`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import torch

from clefquant.quantize.hessian import round_by_gptq
from clefquant.quantize.scales import DEFAULT_SCALES, Scales
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import Format
from clefquant.recipes.fused import fused_gdn_inputs
from clefquant.release.units import Linear, Unit


@dataclass(frozen=True)
class QuantizedLinear:
    """``tensors``: what a checkpoint stores, by local name (``weight_packed``, ``weight_scale``, …); ``scheme``:
    compressed-tensors' scheme, with ``format`` set.
    """

    tensors: dict[str, torch.Tensor]
    scheme: Any

    @cached_property
    def weight(self) -> torch.Tensor:
        """The dequantized value [O, I], float32 or bfloat16."""
        return dequantize(self.tensors, self.scheme)


def quantize_unit(
    unit: Unit,
    weights: Mapping[str, torch.Tensor],
    fmt: Format,
    input_amax: Mapping[str, float],
    hessians: Mapping[str, torch.Tensor] | None = None,
    scales: Scales = DEFAULT_SCALES,
) -> dict[str, QuantizedLinear]:
    """Quantize every linear of ``unit``: to nearest, or by GPTQ when ``hessians`` are given.

    ``weights``: full linear name to its source weight [O, I] (bfloat16). ``input_amax``: full linear name to the
    largest absolute input seen in calibration; read for formats with a static input scale alone. ``hessians``: full
    linear name to the mean of 2 x xᵀ over its inputs [I, I], float32. ``scales``: how block scales are chosen. The
    result has the same keys.
    """
    from compressed_tensors.compressors import compress_module
    from compressed_tensors.quantization import apply_quantization_config
    from compressed_tensors.quantization.utils import generate_gparam
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.quantization.calibration import observe, update_qparams

    block = torch.nn.Module()
    for linear in unit.linears:
        leaf = torch.nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        leaf.weight = torch.nn.Parameter(weights[linear.name], requires_grad=False)
        block.add_module(linear.name.rsplit(".", 1)[1], leaf)
    modifier = QuantizationModifier(config_groups={"group_0": _scheme(fmt, scales)})
    with fused_gdn_inputs():
        # what initialize_quantization does, without a progress bar per unit
        apply_quantization_config(block, modifier.resolved_config, show_progress=False)
        modifier.start_calibration(block)
    leaves: dict[Linear, Any] = dict(zip(unit.linears, block.children(), strict=True))
    observe(leaves.values(), "weight")
    if hessians is None:
        update_qparams(leaves.values(), "weight")
    else:
        for linear, leaf in leaves.items():
            round_by_gptq(leaf, hessians[linear.name])
    if fmt.static_input:
        for linear, leaf in leaves.items():
            # in the weight's dtype, as the observer of a model in that dtype would compute it
            amax = torch.tensor([input_amax[linear.name]], dtype=weights[linear.name].dtype)
            leaf.input_global_scale.data.copy_(generate_gparam(-amax, amax))
    modifier.end_calibration(block)
    result = {}
    for linear, leaf in leaves.items():
        compress_module(leaf)
        tensors = {name: tensor.detach() for name, tensor in leaf.state_dict().items()}
        result[linear.name] = QuantizedLinear(tensors, leaf.quantization_scheme)
    return result


def _scheme(fmt: Format, scales: Scales) -> Any:
    """compressed-tensors' scheme with the observer that makes the wanted scales."""
    scheme = scheme_of(fmt, ["Linear"])
    if (observer := scales.observer(fmt)) is not None:
        import_module("clefquant.quantize.observers")  # registers them
        scheme.weights = scheme.weights.model_copy(update={"observer": observer})
    return scheme


def dequantize(tensors: Mapping[str, torch.Tensor], scheme: Any) -> torch.Tensor:
    """The weight [O, I] that ``tensors`` stand for, by compressed-tensors' own decompressor of ``scheme.format``.

    A bfloat16 scale is widened first: kernels multiply it in float32, so the product is not rounded to bfloat16 here
    either.
    """
    from compressed_tensors.compressors import BaseCompressor

    compressor = BaseCompressor.get_value_from_registry(scheme.format.value)
    wide = {name: value.float() if value.dtype == torch.bfloat16 else value for name, value in tensors.items()}
    weight: torch.Tensor = compressor.decompress(wide, scheme)["weight"]
    return weight
