"""The release's joint head over a whole batch at once: the same state and formulas, without a Python loop per record.

The release's head loops over records, questions and options, which costs more than the backbone when records are
short and the same records are scored many times. Everything that depends on the records alone (spans, padding,
lexical vectors) is computed once per batch in :func:`plan_head`; :func:`batched_head` then needs only hidden states.

Shapes: B records, L padded tokens, H hidden size, W head width, M questions, N options of the whole batch, in the
order of records, questions, options. Differs from the release's head by the order of summation alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

_MAX_LOG_SCALE = math.log(100.0)


@dataclass(frozen=True)
class HeadPlan:
    """What the head needs to know of a batch besides its hidden states.

    ``padding_BL``: true where a token is padding. ``last_B``: index of each record's last token. ``spans_BSL``: 0/1
    membership of tokens in each record's spans (its questions, then its options), padded to S. ``question_rows_M``,
    ``option_rows_N``: places of questions and options among the B x S spans. ``option_question_N``,
    ``question_record_M``: what each belongs to. ``field_rows_M``, ``query_rows_N``, ``choice_rows_N``: places in the
    padded [B, F], [B, Q] and [M, C] arrangements, whose sizes are ``fields``, ``queries`` and ``choices``.
    ``lexical_NH``: mean lm_head rows of the options.
    """

    padding_BL: torch.Tensor
    last_B: torch.Tensor
    spans_BSL: torch.Tensor
    types_M: torch.Tensor
    question_rows_M: torch.Tensor
    option_rows_N: torch.Tensor
    option_question_N: torch.Tensor
    question_record_M: torch.Tensor
    field_rows_M: torch.Tensor
    query_rows_N: torch.Tensor
    choice_rows_N: torch.Tensor
    fields: int
    queries: int
    choices: int
    lexical_NH: torch.Tensor


def plan_head(
    records: Sequence[Any],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    table: torch.Tensor,
    dtype: torch.dtype,
) -> HeadPlan:
    """Plan a collated batch: the release's ``EncodedRecord``s, ``input_ids`` and ``attention_mask`` [B, L], lm_head
    [V, H]."""
    device = input_ids.device
    questions = [(b, f, question) for b, record in enumerate(records) for f, question in enumerate(record.questions)]
    fields = max(len(record.questions) for record in records)
    queries = max(sum(len(question.option_spans) for question in record.questions) for record in records)
    choices = max(len(question.option_spans) for _, _, question in questions)
    spans = torch.zeros(len(records), fields + queries, input_ids.shape[1], dtype=dtype)
    places: dict[str, list[int]] = {
        name: [] for name in ("question", "option", "owner", "record", "field", "query", "choice")
    }
    seen = [0] * len(records)
    for m, (b, f, question) in enumerate(questions):
        spans[b, f, slice(*question.question_span)] = 1
        places["question"].append(b * (fields + queries) + f)
        places["record"].append(b)
        places["field"].append(b * fields + f)
        for c, span in enumerate(question.option_spans):
            spans[b, fields + seen[b], slice(*span)] = 1
            places["option"].append(b * (fields + queries) + fields + seen[b])
            places["owner"].append(m)
            places["query"].append(b * queries + seen[b])
            places["choice"].append(m * choices + c)
            seen[b] += 1
    rows = {name: torch.tensor(value, device=device) for name, value in places.items()}
    # spans are a few tokens long: the lookup reads each option's own rows and never the table as a matrix
    lexical = torch.stack(
        [
            table[input_ids[b, start:end]].mean(dim=0)
            for b, _, question in questions
            for start, end in question.option_spans
        ]
    )
    return HeadPlan(
        padding_BL=attention_mask == 0,
        last_B=attention_mask.sum(dim=1) - 1,
        spans_BSL=spans.to(device),
        types_M=torch.tensor([question.question_type for _, _, question in questions], device=device),
        question_rows_M=rows["question"],
        option_rows_N=rows["option"],
        option_question_N=rows["owner"],
        question_record_M=rows["record"],
        field_rows_M=rows["field"],
        query_rows_N=rows["query"],
        choice_rows_N=rows["choice"],
        fields=fields,
        queries=queries,
        choices=choices,
        lexical_NH=lexical,
    )


def batched_head(head: Any, plan: HeadPlan, hidden_BLH: torch.Tensor) -> torch.Tensor:
    """Option logits [N] of a batch from the decoder's final hidden states. ``head``: the release's
    ``JointSchemaHead``."""
    # padding may hold anything, also NaN, and 0 x NaN is NaN
    normalized_BLH = head.hidden_norm(hidden_BLH.masked_fill(plan.padding_BL.unsqueeze(-1), 0))
    memory_BLW = head.memory_projection(normalized_BLH)
    # places without a span are read by nobody, but their 0 / 0 would reach every gradient
    counts_BS1 = plan.spans_BSL.sum(dim=-1, keepdim=True).clamp(min=1)
    pooled_BSH = plan.spans_BSL @ normalized_BLH / counts_BS1
    pooled = pooled_BSH.flatten(0, 1)
    question_MH, context_NH = pooled[plan.question_rows_M], pooled[plan.option_rows_N]
    batch = torch.arange(len(hidden_BLH), device=hidden_BLH.device)
    global_MH = normalized_BLH[batch, plan.last_B][plan.question_record_M]

    query_NW = (
        head.option_context_projection(context_NH)
        + head.option_lexical_projection(plan.lexical_NH)
        + head.option_question_projection(question_MH)[plan.option_question_N]
    )
    routed_BQW = _spread(query_NW, plan.query_rows_N, len(hidden_BLH), plan.queries)
    for layer in head.evidence_layers:
        memory = layer.memory_norm(memory_BLW)
        found, _ = layer.attention(
            layer.query_norm(routed_BQW), memory, memory, key_padding_mask=plan.padding_BL, need_weights=False
        )
        routed_BQW = routed_BQW + found
        routed_BQW = routed_BQW + layer.feedforward(layer.feedforward_norm(routed_BQW))
    routed_NW = routed_BQW.flatten(0, 1)[plan.query_rows_N]

    base_MW = head.question_projection(question_MH)
    fields_MW = (
        base_MW
        + head.option_summary_norm(_summaries(routed_NW, base_MW, plan))
        + head.global_projection(global_MH)
        + head.type_embedding(plan.types_M)
    )
    fields_BFW = _spread(fields_MW, plan.field_rows_M, len(hidden_BLH), plan.fields)
    absent_BF = torch.ones(len(hidden_BLH) * plan.fields, dtype=torch.bool, device=hidden_BLH.device)
    absent_BF = absent_BF.index_fill(0, plan.field_rows_M, False).view(len(hidden_BLH), plan.fields)
    for layer in head.layers:
        fields_BFW = layer(
            fields_BFW, memory_BLW, tgt_key_padding_mask=absent_BF, memory_key_padding_mask=plan.padding_BL
        )
    field_NW = head.field_norm(fields_BFW.flatten(0, 1)[plan.field_rows_M])[plan.option_question_N]
    return _scores(head, plan, field_NW, routed_NW, question_MH + global_MH)


def _spread(rows: torch.Tensor, places: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """Rows [R, W] at their places in a zero-padded [count, width, W]."""
    empty = rows.new_zeros(count * width, rows.shape[-1])
    return empty.index_copy(0, places, rows).view(count, width, rows.shape[-1])


def _summaries(routed_NW: torch.Tensor, base_MW: torch.Tensor, plan: HeadPlan) -> torch.Tensor:
    """Per question, its options weighted by the softmax of their scaled products with the question: [M, W]."""
    products_N = (routed_NW * base_MW[plan.option_question_N]).sum(dim=-1) / math.sqrt(routed_NW.shape[-1])
    padded = products_N.new_full((len(base_MW) * plan.choices,), -torch.inf)
    weights_MC = padded.index_copy(0, plan.choice_rows_N, products_N).view(len(base_MW), plan.choices).softmax(dim=-1)
    options_MCW = _spread(routed_NW, plan.choice_rows_N, len(base_MW), plan.choices)
    return (weights_MC.unsqueeze(-1) * options_MCW).sum(dim=1)


def _scores(
    head: Any, plan: HeadPlan, field_NW: torch.Tensor, routed_NW: torch.Tensor, anchor_MH: torch.Tensor
) -> torch.Tensor:
    """Lexical cosine prior plus the gated joint score: [N]."""
    anchor_NH = functional.normalize(anchor_MH, dim=-1)[plan.option_question_N]
    prior_scale = head.prior_logit_scale.clamp(max=_MAX_LOG_SCALE).exp()
    prior_N = prior_scale * (functional.normalize(plan.lexical_NH, dim=-1) * anchor_NH).sum(dim=-1)
    options_NW = head.option_norm(routed_NW)
    features = torch.cat([field_NW, options_NW, field_NW * options_NW, (field_NW - options_NW).abs()], dim=-1)
    residual_N = head.residual_scorer(features).squeeze(-1)
    joint_scale = head.joint_logit_scale.clamp(max=_MAX_LOG_SCALE).exp()
    joint_N = joint_scale * functional.cosine_similarity(field_NW, options_NW, dim=-1) + residual_N
    logits_N: torch.Tensor = prior_N + torch.sigmoid(head.residual_gate) * joint_N
    return logits_N
