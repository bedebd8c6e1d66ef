"""The joint head, vectorized over the options, questions and requests of a step. State dict as in the release.

    H hidden size, W head width, T/Q/N packed tokens, questions and options of all requests, B requests of a bucket
    span vectors    mean of LayerNorm(hidden) over a span                                       [Q, H], [N, H]
    lexical         mean of the lm_head rows of an option's tokens                              [N, H]
    options         context + lexical + question projections, then routing layers over memory   [N, W]
    fields          question projection + attention-weighted options + global + type, then
                    decoder layers (fields of one request see one another and its memory)       [Q, W]
    logit           exp(s1) cos(lexical, question + global) + sigmoid(g) (exp(s2) cos(field, option) + residual)

Linear layers run in the weights' dtype; the softmax over a question's options, cosines and logits run in float32.
Rows of different requests meet only in attention, and only inside padded rectangles that repeat a request's own rows
(see indices.py), so what is NaN in one request stays there.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clef_vllm.indices import Bag, Bucket, HeadBatch, Rect

MAX_LOGIT_SCALE = math.log(100.0)


class Attention(nn.Module):
    """Multi-head attention with the parameter names and shapes of `torch.nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"joint head: width {width} is not divisible by heads {heads}")
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, queries: Tensor, memory: Tensor, pairs: list[tuple[Rect, Rect]]) -> Tensor:
        """queries [N, W] and memory [T, W], packed; each pair says which rows of both meet. Returns [N, W]."""
        w_q, w_kv = self.in_proj_weight.split([queries.shape[1], 2 * queries.shape[1]])
        b_q, b_kv = self.in_proj_bias.split([queries.shape[1], 2 * queries.shape[1]])
        query = F.linear(queries, w_q, b_q)
        keys_values = F.linear(memory, w_kv, b_kv)
        out = torch.empty_like(query)
        for to, source in pairs:
            q = self._heads(_rectangle(query, to))
            k, v = (self._heads(half) for half in _rectangle(keys_values, source).chunk(2, dim=-1))
            mask = None
            if not source.even:
                columns = torch.arange(source.places.shape[1], device=q.device)
                mask = (columns < source.lengths[:, None])[:, None, None, :].expand(-1, -1, q.shape[2], -1)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            rows = mixed.transpose(1, 2).reshape(-1, queries.shape[1])
            if to.whole:
                out = rows
            else:
                out[to.packed] = rows[to.slots]
        projected: Tensor = self.out_proj(out)
        return projected

    def _heads(self, rows: Tensor) -> Tensor:
        """[B, n, W] to [B, heads, n, W / heads]."""
        return rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class RoutingLayer(nn.Module):
    """Options read the prompt."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(width)
        self.memory_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feedforward_norm = nn.LayerNorm(width)
        # The empty places are dropout in the release; they keep the numbering of the parameters.
        self.feedforward = nn.Sequential(
            nn.Linear(width, feedforward), nn.GELU(), nn.Identity(), nn.Linear(feedforward, width)
        )

    def forward(self, options: Tensor, memory: Tensor, buckets: list[Bucket]) -> Tensor:
        pairs = [(bucket.options, bucket.memory) for bucket in buckets]
        options = options + self.attention(self.query_norm(options), self.memory_norm(memory), pairs)
        updated: Tensor = options + self.feedforward(self.feedforward_norm(options))
        return updated


class FieldLayer(nn.Module):
    """Fields read one another, then the prompt: a pre-norm transformer decoder layer with GELU."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.multihead_attn = Attention(width, heads)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, fields: Tensor, memory: Tensor, buckets: list[Bucket]) -> Tensor:
        normed = self.norm1(fields)
        fields = fields + self.self_attn(normed, normed, [(bucket.fields, bucket.fields) for bucket in buckets])
        pairs = [(bucket.fields, bucket.memory) for bucket in buckets]
        fields = fields + self.multihead_attn(self.norm2(fields), memory, pairs)
        updated: Tensor = fields + self.linear2(F.gelu(self.linear1(self.norm3(fields))))
        return updated


class JointHead(nn.Module):
    """Logits of every option from the final hidden states of the whole prompt."""

    def __init__(
        self, hidden_size: int, width: int, routing_layers: int, layers: int, heads: int, feedforward: int,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        """The keys of joint_head_config.json. Dropout is accepted and unused: there is no training here."""
        super().__init__()
        self.hidden_norm = nn.LayerNorm(hidden_size)
        self.memory_projection = nn.Linear(hidden_size, width, bias=False)
        self.question_projection = nn.Linear(hidden_size, width, bias=False)
        self.option_question_projection = nn.Linear(hidden_size, width, bias=False)
        self.global_projection = nn.Linear(hidden_size, width, bias=False)
        self.option_context_projection = nn.Linear(hidden_size, width, bias=False)
        self.option_lexical_projection = nn.Linear(hidden_size, width, bias=False)
        self.type_embedding = nn.Embedding(3, width)
        self.evidence_layers = nn.ModuleList(RoutingLayer(width, heads, feedforward) for _ in range(routing_layers))
        self.option_summary_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(FieldLayer(width, heads, feedforward) for _ in range(layers))
        self.field_norm = nn.LayerNorm(width)
        self.option_norm = nn.LayerNorm(width)
        self.residual_scorer = nn.Sequential(nn.Linear(width * 4, width), nn.GELU(), nn.Identity(), nn.Linear(width, 1))
        self.prior_logit_scale = nn.Parameter(torch.zeros(()))
        self.joint_logit_scale = nn.Parameter(torch.zeros(()))
        self.residual_gate = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor, lexical_rows: Tensor, batch: HeadBatch) -> Tensor:
        """hidden [T, H] packed, lexical_rows [U, H] the rows of batch.lexical_ids; returns logits [N] float32."""
        hidden = self.hidden_norm(hidden)
        memory = self.memory_projection(hidden)
        question = _mean(hidden, batch.question_bag)
        context = _mean(hidden, batch.option_bag)
        lexical = _mean(lexical_rows, batch.lexical_bag)
        last = hidden[batch.last]

        options = self.option_context_projection(context) + self.option_lexical_projection(lexical)
        options = options + self.option_question_projection(question)[batch.owner]
        for layer in self.evidence_layers:
            options = layer(options, memory, batch.buckets)

        base = self.question_projection(question)
        summary = _summarize(options, base, batch)
        fields = base + self.option_summary_norm(summary.to(base.dtype))
        fields = fields + self.global_projection(last) + self.type_embedding(batch.types)
        for layer in self.layers:
            fields = layer(fields, memory, batch.buckets)

        field, option = self.field_norm(fields)[batch.owner], self.option_norm(options)
        features = torch.cat([field, option, field * option, (field - option).abs()], dim=-1)
        residual = self.residual_scorer(features).squeeze(-1).float()
        cosine = F.cosine_similarity(field.float(), option.float(), dim=-1)
        anchor = F.normalize((question + last).float(), dim=-1)[batch.owner]
        prior = (F.normalize(lexical.float(), dim=-1) * anchor).sum(-1)
        scales = (scale.float().clamp(max=MAX_LOGIT_SCALE).exp() for scale in
                  (self.prior_logit_scale, self.joint_logit_scale))  # fmt: skip
        prior_scale, joint_scale = scales
        return prior_scale * prior + self.residual_gate.float().sigmoid() * (joint_scale * cosine + residual)


def _rectangle(rows: Tensor, rect: Rect) -> Tensor:
    """Packed rows [*, W] as the places [B, n, W] of a bucket."""
    return rows.unflatten(0, rect.places.shape) if rect.whole else rows[rect.places]


def _mean(rows: Tensor, bag: Bag) -> Tensor:
    """Mean of the rows of each span, [bags, H]; accumulated in float32 by the kernel, in a fixed order."""
    return F.embedding_bag(bag.rows, rows, bag.offsets, mode="mean")


def _summarize(options: Tensor, base: Tensor, batch: HeadBatch) -> Tensor:
    """Per question the options weighted by softmax(option . field / sqrt(W)), [Q, W] float32, without padding."""
    options = options.float()
    scores = (options * base.float()[batch.owner]).sum(-1) / math.sqrt(options.shape[1])
    rows = torch.arange(len(scores), device=scores.device)
    highest = F.embedding_bag(rows, scores[:, None], batch.option_offsets, mode="max")[batch.owner, 0]
    weights = (scores - highest).exp()
    total = F.embedding_bag(rows, weights[:, None], batch.option_offsets, mode="sum")[batch.owner, 0]
    return F.embedding_bag(rows, options, batch.option_offsets, mode="sum", per_sample_weights=weights / total)
