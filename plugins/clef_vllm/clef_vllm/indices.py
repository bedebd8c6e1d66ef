"""Index tensors for the joint head: every finished request of a step in one structure, built on the CPU.

Letters: R requests, T tokens of all requests packed one after another, Q questions, N options.
Everything is packed except attention, which needs rectangles: requests of similar length and option count share a
bucket and are padded inside it. A padded place points at a row of the same request, never at a neighbour's: masked
attention multiplies padded values by zero, and zero times a neighbour's NaN would be NaN.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clef_vllm.layout import IntArray, Schema

# A bucket holds at most this many padded memory tokens, which bounds the attention buffers of a step.
MAX_BUCKET_TOKENS = 32768
# Fused attention kernels want mask rows aligned to 8 elements.
ALIGN = 8


class Bag(NamedTuple):
    """Ragged lists of row numbers for `embedding_bag`: bag i averages rows[offsets[i]:offsets[i + 1]]."""

    rows: Tensor  # [rows of all spans] int64
    offsets: Tensor  # [bags] int64


class Rect(NamedTuple):
    """One padded axis of a bucket of B requests."""

    places: Tensor  # [B, padded] int64: packed row of every place
    lengths: Tensor  # [B] int64: places that are not padding
    even: bool  # all rows full: no mask needed
    whole: bool  # even, and the only bucket: the packed rows in their order, so nothing needs gathering
    slots: Tensor  # [places] int64: places of the flattened rectangle that are not padding, in packed order
    packed: Tensor  # [places] int64: the packed row of each of them


class Bucket(NamedTuple):
    memory: Rect  # over T
    options: Rect  # over N
    fields: Rect  # over Q


class HeadBatch(NamedTuple):
    """All indices of a step, on the model's device."""

    question_bag: Bag  # Q bags over T
    option_bag: Bag  # N bags over T
    lexical_bag: Bag  # N bags over the unique option tokens
    lexical_ids: Tensor  # [U] int64 vocabulary ids, unique
    lexical_ids_host: Tensor  # the same in host memory
    types: Tensor  # [Q]
    last: Tensor  # [Q]: last token of the question's request, a row of T
    owner: Tensor  # [N]: question of each option, a row of Q
    option_offsets: Tensor  # [Q]: first option of each question
    buckets: list[Bucket]
    options_per_request: list[int]


def _ranges(spans: IntArray) -> tuple[IntArray, IntArray]:
    """Concatenated `range(start, end)` of every span, and where each begins. No loop over spans."""
    lengths = spans[:, 1] - spans[:, 0]
    offsets = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(spans[:, 0] - offsets, lengths), offsets


def _rect(starts: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray, bool, IntArray, IntArray]:
    widest = int(lengths.max())
    even = bool((lengths == widest).all())
    places = np.arange(widest if even else -(-widest // ALIGN) * ALIGN)
    index = starts[:, None] + np.minimum(places, lengths[:, None] - 1)
    real = places < lengths[:, None]
    return index, lengths, even, np.flatnonzero(real), index[real]


def _bucket_members(tokens: IntArray, options: IntArray) -> list[IntArray]:
    """Requests whose lengths and option counts lie in the same power of two, split at MAX_BUCKET_TOKENS."""
    keys = np.ceil(np.log2(tokens)).astype(np.int64) * 64 + np.ceil(np.log2(options)).astype(np.int64)
    members = []
    for key in np.unique(keys):
        group = np.flatnonzero(keys == key)
        step = max(1, MAX_BUCKET_TOKENS // int(tokens[group].max()))
        members += [group[at : at + step] for at in range(0, len(group), step)]
    return members


def build_batch(schemas: list[Schema], prompts: list[IntArray], device: torch.device) -> HeadBatch:
    """Indices for R requests whose hidden states lie packed in the same order; prompts[r] are request r's token ids."""
    tokens = np.array([len(prompt) for prompt in prompts])
    questions = np.array([len(schema.types) for schema in schemas])
    options = np.array([len(schema.option_spans) for schema in schemas])
    token_start, question_start, option_start = (np.cumsum(n) - n for n in (tokens, questions, options))
    question_rows, question_offsets = _ranges(
        np.concatenate([s.question_spans + at for s, at in zip(schemas, token_start, strict=True)])
    )
    option_rows, option_offsets = _ranges(
        np.concatenate([s.option_spans + at for s, at in zip(schemas, token_start, strict=True)])
    )
    # Options share most of their tokens (quotes, key names, common words): look each table row up once.
    lexical_ids, lexical_rows = np.unique(np.concatenate(prompts)[option_rows], return_inverse=True)
    counts = np.concatenate([schema.option_counts for schema in schemas])
    members = _bucket_members(tokens, options)
    rects = [
        [_rect(start[m], size[m]) for start, size in ((token_start, tokens), (option_start, options),
                                                      (question_start, questions))]
        for m in members
    ]  # fmt: skip
    flat = [
        question_rows, question_offsets, option_rows, option_offsets, lexical_rows.reshape(-1), lexical_ids,
        np.concatenate([schema.types for schema in schemas]),
        np.repeat(token_start + tokens - 1, questions),
        np.repeat(np.arange(len(counts)), counts),
        np.cumsum(counts) - counts,
        *(array for rect in rects for index, lengths, _, slots, packed in rect
          for array in (index, lengths, slots, packed)),
    ]  # fmt: skip
    parts = iter(_to_device(flat, device))
    q_rows, q_off, o_rows, o_off, l_rows, l_ids, types, last, owner, starts = (next(parts) for _ in range(10))
    only = len(members) == 1
    buckets = [
        Bucket(
            *(Rect(next(parts), next(parts), even, even and only, next(parts), next(parts)) for _, _, even, *_ in rect)
        )
        for rect in rects
    ]
    return HeadBatch(
        Bag(q_rows, q_off), Bag(o_rows, o_off), Bag(l_rows, o_off), l_ids, torch.from_numpy(lexical_ids), types, last,
        owner, starts, buckets, options.tolist(),
    )  # fmt: skip


def _to_device(arrays: list[IntArray], device: torch.device) -> list[Tensor]:
    """All arrays through one pinned buffer and one copy: a step has dozens of them, and each copy costs a launch."""
    buffer = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]).astype(np.int64, copy=False))
    if device.type == "cuda":
        buffer = buffer.pin_memory().to(device, non_blocking=True)
    parts = torch.split(buffer, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
