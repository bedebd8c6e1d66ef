"""The pooler: collects each request's hidden states over its chunks, then runs the joint head on all finished ones.

It runs inside the engine core, where an exception ends the engine and every request with it. So nothing here raises
for a request's fault: a request whose layout is missing or wrong gets an empty result, which the front end turns into
an error for that request alone.
"""

from collections.abc import Callable, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from vllm.model_executor.layers.pooler import Pooler, PoolingParamsUpdate

from clef_vllm import compat
from clef_vllm.head import JointHead
from clef_vllm.indices import HeadBatch, build_batch
from clef_vllm.layout import EXTRA_KEY, TASK, IntArray, Schema, parse_layout, widest_schema


class Ready(NamedTuple):
    """A finished request: `parts` are its hidden states [tokens, H], chunk by chunk, `prompt` its token ids."""

    number: int
    schema: Schema
    prompt: IntArray
    parts: list[Tensor]
    asked: bool  # False: computed for its memory only, the result is dropped


class ClefPooler(Pooler):
    def __init__(self, head: JointHead, lexical_rows: Callable[[HeadBatch], Tensor]) -> None:
        """lexical_rows: lm_head rows [U, H] of a batch's ids; under tensor parallelism every rank calls it."""
        nn.Module.__init__(self)
        self.head = head
        self.lexical_rows = lexical_rows

    def get_supported_tasks(self) -> Set[Any]:
        return {TASK}

    def get_pooling_updates(self, task: Any) -> PoolingParamsUpdate:
        return PoolingParamsUpdate(requires_token_ids=True)

    def forward(self, hidden_states: Tensor, pooling_metadata: Any) -> list[Tensor | None]:
        """hidden_states [tokens, H]; one entry per request: None while chunks are missing, else [N] float32."""
        cursor = pooling_metadata.get_pooling_cursor()
        chunks = torch.split(hidden_states, cursor.num_scheduled_tokens_cpu.tolist())
        done = compat.finished(cursor)
        outputs: list[Tensor | None] = [None] * len(chunks)
        ready: list[Ready] = []
        prompts = pooling_metadata.get_prompt_token_ids_cpu()
        for number, (chunk, state) in enumerate(zip(chunks, pooling_metadata.pooling_states, strict=True)):
            if not done[number]:
                # A copy: the engine reuses the buffer of this step's hidden states.
                state.hidden_states_cache.append(chunk.clone())
                continue
            outputs[number] = hidden_states.new_empty(0, dtype=torch.float32)
            parts = [*state.hidden_states_cache, chunk]
            state.clean()
            extra = pooling_metadata.pooling_params[number].extra_kwargs
            ready += _ready(number, parts, prompts[number].numpy(), extra)
        if ready:
            whole = len(ready) == len(chunks) and all(len(one.parts) == 1 for one in ready)
            packed = hidden_states if whole else torch.cat([part for one in ready for part in one.parts])
            for one, logits in zip(ready, self._logits(packed, ready), strict=True):
                if one.asked:
                    outputs[one.number] = logits
        return outputs

    def _logits(self, packed: Tensor, ready: list[Ready]) -> tuple[Tensor, ...]:
        batch = build_batch([one.schema for one in ready], [one.prompt for one in ready], packed.device)
        packed = packed.to(self.head.memory_projection.weight.dtype)
        logits = self.head(packed, self.lexical_rows(batch).to(packed.dtype), batch)
        return torch.split(logits, batch.options_per_request)


def _ready(number: int, parts: list[Tensor], prompt: IntArray, extra: dict[str, Any] | None) -> list[Ready]:
    """The finished request `number` as the head takes it; nothing if its layout or its rows do not fit."""
    rows = sum(len(part) for part in parts)
    if extra is None:
        # vLLM measures its peak memory with requests that ask nothing; the head's share must be part of it.
        return [Ready(number, widest_schema(rows), np.zeros(rows, dtype=np.int64), parts, asked=False)]
    schema = parse_layout(extra.get(EXTRA_KEY), len(prompt))
    # Fewer rows than prompt tokens: a prefix was read from the cache and its hidden states are unknown.
    if schema is None or rows != len(prompt):
        return []
    return [Ready(number, schema, prompt, parts, asked=True)]
