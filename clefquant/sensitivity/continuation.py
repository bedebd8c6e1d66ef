"""Running a model from any layer on: what a probe shares with every other probe is computed once.

A decoder layer is ``h + mixer(norm(h))`` (Gated DeltaNet or attention), then ``m + mlp(norm(m))``. A probe of a
layer's mixer starts from the layer's input ``h``, a probe of its MLP from the state ``m`` between the halves. Both
are taken from the unchanged model, so that continuing equals the full forward bit for bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from clefquant.release.head import HeadPlan, batched_head, plan_head
from clefquant.release.load import LoadedRelease
from clefquant.release.recording import recording
from clefquant.sensitivity.shards import Shard


@dataclass(frozen=True)
class PreparedBatch:
    """A collated batch. ``calls``: the keyword arguments (positions, masks) the model passes to each of its layers."""

    records: tuple[int, ...]
    sizes: tuple[int, ...]
    calls: tuple[dict[str, Any], ...]
    head: HeadPlan


def prepare(loaded: LoadedRelease, shard: Shard) -> Iterator[tuple[PreparedBatch, torch.Tensor]]:
    """Yield every batch of a shard with the embedded prompts [B, L, H] that enter layer 0."""
    table = loaded.model.language_model.get_output_embeddings().weight
    pad = loaded.processor.tokenizer.pad_token_id
    for group in shard.groups:
        encoded = [shard.records[index].encoded for index in group]
        batch = loaded.code.collate_records(encoded, pad, loaded.device)
        media = batch["media"]
        text = loaded.model.language_model.model if media else loaded.text_model
        with recording(loaded.text_model) as recorders:
            text(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False, **media)
        hidden = recorders[0].hidden
        assert hidden is not None
        plan = plan_head(encoded, batch["input_ids"], batch["attention_mask"], table, hidden.dtype)
        sizes = tuple(sum(len(q.option_ids) for q in record.questions) for record in encoded)
        yield PreparedBatch(group, sizes, tuple(recorder.keywords for recorder in recorders), plan), hidden


def run_layers(loaded: LoadedRelease, batch: PreparedBatch, hidden: torch.Tensor, first: int) -> torch.Tensor:
    """Option logits [N] of a batch from the input [B, L, H] of layer ``first``."""
    text = loaded.text_model
    for index in range(first, len(text.layers)):
        hidden = text.layers[index](hidden, **batch.calls[index])
    return batched_head(loaded.model.head, batch.head, text.norm(hidden))


def run_mlp(loaded: LoadedRelease, middle: torch.Tensor, layer: int) -> torch.Tensor:
    """Output of ``layer`` from the state between its halves."""
    module = loaded.text_model.layers[layer]
    output: torch.Tensor = middle + module.mlp(module.post_attention_layernorm(middle))
    return output


def run_mixer(loaded: LoadedRelease, batch: PreparedBatch, hidden: torch.Tensor, layer: int) -> torch.Tensor:
    """State between the halves of ``layer``, from its input."""
    module = loaded.text_model.layers[layer]
    taken: list[torch.Tensor] = []
    handle = module.post_attention_layernorm.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    mlp = module.mlp
    module.mlp = torch.nn.Identity()  # the second half is computed from the state when it is needed
    try:
        module(hidden, **batch.calls[layer])
    finally:
        module.mlp = mlp
        handle.remove()
    return taken[0]


def in_record_order(shard: Shard, parts: Sequence[tuple[PreparedBatch, torch.Tensor]]) -> torch.Tensor:
    """Logits of all batches as one float32 CPU vector, in the order of records, questions and options."""
    flat = torch.cat([logits.float() for _, logits in parts]).cpu()  # one copy: a device waits at each
    rows = [record for batch, _ in parts for record in batch.records]
    sizes = [size for batch, _ in parts for size in batch.sizes]
    by_record = dict(zip(rows, torch.split(flat, sizes), strict=True))
    return torch.cat([by_record[index] for index in range(len(shard.records))])
