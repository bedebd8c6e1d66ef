"""Activation-aware weight quantization (AWQ) of one layer in memory, by llm-compressor's ``AWQModifier``.

    y = W x = (W s) (x / s),  s > 0 per input channel

Channels with large inputs get a larger share of their block's grid. The division by s is moved into what makes x: the
norm before a block, or ``up_proj`` before ``down_proj``. llm-compressor searches s over powers of mean |x| and mean |W|
by the error of the block's output with its weights rounded; it gets one layer, the set's tokens without padding, and
each unit's own format.

Qwen3.5 stores a norm's weight as w in bfloat16 and multiplies by 1 + w, of which few digits are left when it is small.
So s is replaced by (1 + w) / (1 + w') with w' as it is stored: what is taken from the norm is what the weights get.

Imported when it is needed: llm-compressor takes seconds to import.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from compressed_tensors.quantization import apply_quantization_config, disable_quantization
from compressed_tensors.utils import patch_attr
from llmcompressor.core import create_session
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQMapping, base
from llmcompressor.pipelines.cache import IntermediatesCache

from clefquant.quantize.awq_search import Norm, Search
from clefquant.quantize.layerwise import LayerStep
from clefquant.recipes.awq import MAPPINGS, touched
from clefquant.recipes.config import scheme_of
from clefquant.recipes.formats import Format
from clefquant.recipes.fused import fused_gdn_inputs
from clefquant.release.units import LAYER_PREFIX, Unit


@torch.inference_mode()
def smooth(step: LayerStep, formats: Mapping[Unit, Format]) -> None:
    """Run the set through the layer, and smooth the given units for their formats.

    Changes weights of the layer and the same tensors of ``step.source``, which keep the dtype they are stored in.
    """
    with fused_gdn_inputs(), _fitted(), create_session() as session, _masks(step, session.state):
        session.state.model = holder = _holder(step, formats)
        modifier = Search(offload_device=None, mappings=[mapping for unit in formats for mapping in _mappings(unit)])
        modifier.on_calibration_start(session.state, None)
        step.run()
        modifier.on_sequential_epoch_end(session.state, None)
        modifier.on_calibration_end(session.state, None)
    _take_over(step, holder, formats)


def _mappings(unit: Unit) -> list[AWQMapping]:
    return [AWQMapping(before, list(after)) for before, after in MAPPINGS[unit.kind]]


def _holder(step: LayerStep, formats: Mapping[Unit, Format]) -> torch.nn.Module:
    """The blocks of ``formats`` as they are in the layer, their linears marked with their schemes, beside the norms
    before them.
    """
    holder = torch.nn.Module()
    prefix = f"{LAYER_PREFIX}{step.number}."
    groups = {}
    for unit, fmt in formats.items():
        block = unit.name.rsplit(".", 1)[1]
        holder.add_module(block, step.module.get_submodule(block))
        norm = MAPPINGS[unit.kind][0][0]
        holder.add_module(norm, Norm(step.source[f"{prefix}{norm}.weight"]))
        groups[unit.name] = scheme_of(fmt, [linear.name.removeprefix(prefix) for linear in unit.linears])
    config = QuantizationModifier(config_groups=groups).resolved_config
    apply_quantization_config(holder, config, show_progress=False)
    holder.apply(disable_quantization)
    return holder


@contextmanager
def _masks(step: LayerStep, state: Any) -> Iterator[None]:
    """Tell the session of llm-compressor which tokens of the running batch are padding."""
    state.loss_masks = []

    def note(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        hidden, real = arguments[0], step.running().real
        mask = torch.full(hidden.shape[:2], real is None, device=hidden.device)
        if real is not None:
            mask.view(-1)[real] = True
        state.loss_masks.append(mask)
        state.current_batch_idx = len(state.loss_masks) - 1

    handle = step.module.register_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _fitted() -> Iterator[None]:
    """llm-compressor without progress bars, and without pinning memory, which fails where there is no GPU and does
    nothing for tensors on one.
    """
    for owner, name in ((base, "tqdm"), (IntermediatesCache, "pin_memory")):
        assert hasattr(owner, name), f"this llm-compressor has no {name}"
    with (
        patch_attr(base, "tqdm", partial(base.tqdm, disable=True)),
        patch_attr(IntermediatesCache, "pin_memory", lambda *_: None),
    ):
        yield


def _take_over(step: LayerStep, holder: torch.nn.Module, formats: Mapping[Unit, Format]) -> None:
    """Write what the search left in ``holder`` into the step's source, and from there into the layer."""
    for unit in formats:
        for name in touched(unit):
            found, full = holder.get_submodule(name), f"{LAYER_PREFIX}{step.number}.{name}.weight"
            weight = found.get_parameter("weight").detach()
            stored = (weight - 1 if isinstance(found, Norm) else weight).to(step.source[full].dtype)
            module = step.module.get_submodule(name)
            computed = stored.to(module.get_parameter("weight").dtype)
            module.weight = torch.nn.Parameter(computed, requires_grad=False)
            step.source[full] = stored
