"""The joint schema head over a whole batch at once: the release's parameters, no loop over records.

Spans become bags of token positions (mean), options and questions lie in padded grids [rows, slots]; padded slots are
masked where slots see one another. Equality with the release's own head is tested in ``tests/training``.

``clefquant.release.head`` batches the head too, but to run a loaded release: it drives the release's own module, has no
dropout, and plans records in a Python loop together with their lexical vectors, which are fixed there. Here lm_head is
trained through those vectors, worker processes lay batches out as plain index arrays, and the parameters are made
without the release's code.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import shape


class HeadBatch(NamedTuple):
    """Where questions (Q in all) and options (O in all) of a batch lie. Positions count in the flattened tokens."""

    length: Tensor  # [rows]
    question_row: Tensor  # [Q]
    question_slot: Tensor  # [Q]
    question_type: Tensor  # [Q]
    option_question: Tensor  # [O] index into Q
    option_slot: Tensor  # [O] within the row
    option_column: Tensor  # [O] within its question
    question_tokens: Tensor  # positions, spans one after the other
    question_starts: Tensor  # [Q] where each span starts in question_tokens
    option_tokens: Tensor
    option_starts: Tensor
    slots: tuple[int, int, int]  # most questions and options of a row, most options of a question


class _Routing(nn.Module):
    """Options read the prompt: cross-attention and a feedforward block, pre-norm."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.query_norm, self.memory_norm, self.feedforward_norm = (nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        inner = [nn.Linear(width, feedforward), nn.GELU(), nn.Dropout(dropout), nn.Linear(feedforward, width)]
        self.feedforward = nn.Sequential(*inner, nn.Dropout(dropout))
        self.drop = nn.Dropout(dropout)

    def forward(self, options: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        seen = self.memory_norm(memory)
        read, _ = self.attention(self.query_norm(options), seen, seen, key_padding_mask=padding, need_weights=False)
        options = options + self.drop(read)
        out: Tensor = options + self.feedforward(self.feedforward_norm(options))
        return out


class BatchedHead(nn.Module):
    """Logits [Q, most options], minus infinity beyond a question's own options."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        hidden, width = shape.HEAD["hidden_size"], shape.HEAD["width"]
        heads, feedforward = shape.HEAD["heads"], shape.HEAD["feedforward"]
        self.hidden_norm = nn.LayerNorm(hidden)
        for name in ("memory", "question", "option_question", "global", "option_context", "option_lexical"):
            setattr(self, f"{name}_projection", nn.Linear(hidden, width, bias=False))
        self.type_embedding = nn.Embedding(3, width)
        self.evidence_layers = nn.ModuleList(
            _Routing(width, heads, feedforward, dropout) for _ in range(shape.HEAD["routing_layers"])
        )
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(
                width, heads, feedforward, dropout, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(shape.HEAD["layers"])
        )
        self.option_summary_norm, self.field_norm, self.option_norm = (nn.LayerNorm(width) for _ in range(3))
        self.residual_scorer = nn.Sequential(
            nn.Linear(4 * width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, 1)
        )
        for name in ("prior_logit_scale", "joint_logit_scale", "residual_gate"):
            setattr(self, name, nn.Parameter(torch.zeros(())))

    def forward(self, hidden: Tensor, ids: Tensor, batch: HeadBatch, lm_head: Tensor) -> Tensor:
        """``hidden`` [rows, length, hidden], ``ids`` [rows, length], ``lm_head`` [vocabulary, hidden]."""
        m: Any = self
        rows, length, _ = hidden.shape
        most_questions, most_options, _ = batch.slots
        normed = self.hidden_norm(hidden.float()).float()
        flat = normed.reshape(rows * length, -1)
        last = normed[torch.arange(rows, device=hidden.device), batch.length - 1]
        padding = torch.arange(length, device=hidden.device) >= batch.length[:, None]
        memory = m.memory_projection(normed)

        questions = F.embedding_bag(batch.question_tokens, flat, batch.question_starts, mode="mean")
        contexts = F.embedding_bag(batch.option_tokens, flat, batch.option_starts, mode="mean")
        words = ids.reshape(-1)[batch.option_tokens]
        lexical = F.embedding_bag(words, lm_head.float(), batch.option_starts, mode="mean")

        option_row = batch.question_row[batch.option_question]
        queries = m.option_context_projection(contexts) + m.option_lexical_projection(lexical)
        queries = queries + m.option_question_projection(questions)[batch.option_question]
        grid = queries.new_zeros(rows, most_options, queries.shape[-1])
        grid = grid.index_put((option_row, batch.option_slot), queries)
        for layer in self.evidence_layers:
            grid = layer(grid, memory, padding)
        options = grid[option_row, batch.option_slot].float()

        base = m.question_projection(questions).float()
        affinity = (options * base[batch.option_question]).sum(-1) / math.sqrt(options.shape[-1])
        share = self._spread(affinity, batch).softmax(-1)[batch.option_question, batch.option_column]
        summary = torch.zeros_like(base).index_add(0, batch.option_question, share[:, None] * options)
        fields = base + self.option_summary_norm(summary) + m.global_projection(last)[batch.question_row]
        fields = fields + self.type_embedding(batch.question_type)
        slots = fields.new_zeros(rows, most_questions, fields.shape[-1])
        slots = slots.index_put((batch.question_row, batch.question_slot), fields)
        empty = torch.ones(rows, most_questions, dtype=torch.bool, device=hidden.device)
        empty = empty.index_put((batch.question_row, batch.question_slot), torch.zeros_like(batch.question_row).bool())
        empty[:, 0] = False  # a filler row has no question; masking all of it would give NaN
        for layer in self.layers:
            slots = layer(slots, memory, tgt_key_padding_mask=empty, memory_key_padding_mask=padding)
        fields = self.field_norm(slots[batch.question_row, batch.question_slot]).float()

        anchor = F.normalize(questions + last[batch.question_row], dim=-1)[batch.option_question]
        ceiling = math.log(100.0)
        prior = m.prior_logit_scale.clamp(max=ceiling).exp() * (F.normalize(lexical, dim=-1) * anchor).sum(-1)
        option, field = self.option_norm(options).float(), fields[batch.option_question]
        features = torch.cat((field, option, field * option, (field - option).abs()), dim=-1)
        joint = m.joint_logit_scale.clamp(max=ceiling).exp() * F.cosine_similarity(field, option, dim=-1)
        joint = joint + self.residual_scorer(features).squeeze(-1).float()
        return self._spread(prior + torch.sigmoid(m.residual_gate) * joint, batch)

    @staticmethod
    def _spread(values: Tensor, batch: HeadBatch) -> Tensor:
        """Values per option to a table [Q, most options], minus infinity where there is none."""
        table = values.new_full((len(batch.question_row), batch.slots[2]), float("-inf"))
        return table.index_put((batch.option_question, batch.option_column), values)
