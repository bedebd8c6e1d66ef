"""The training code's own delta rule, backbone and head against transformers and the release's code."""

import pytest
import torch

from training import batches, delta_rule, shape
from training.backbone import Backbone
from training.evaluate import NANO
from training.head import BatchedHead
from training.model import Moved

modeling = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
TOKENIZER = NANO / "tokenizer.json"


def release_code():
    try:
        return batches.release_code()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


def test_delta_rule_equals_transformers_with_gradients() -> None:
    torch.manual_seed(0)
    rows, length, heads, width = 2, 256, 2, 32
    query, key = torch.randn(2, rows, length, width).unbind()
    value = torch.randn(rows, length, heads, width)
    g, beta = -torch.rand(rows, length, heads) * 0.3, torch.rand(rows, length, heads)
    inputs = [t.requires_grad_() for t in (query, key, value, g, beta)]
    weight = torch.randn(rows, length, heads, width)

    def split(t: torch.Tensor) -> torch.Tensor:
        return t.reshape(-1, delta_rule.CHUNK, heads, t.shape[-1]).transpose(1, 2)

    unit = [modeling.l2norm(t).reshape(-1, delta_rule.CHUNK, width) for t in (query, key)]
    rates = (split(t.unsqueeze(-1)).squeeze(-1) for t in (g, beta))
    chunks = delta_rule.prepare(*unit, split(value), *rates)
    values, states = delta_rule.ChunkScan.apply(
        chunks.new_values, chunks.read_keys, chunks.write_keys, chunks.decay, rows
    )
    mine = delta_rule.read(chunks, values, states).transpose(1, 2).reshape(rows, length, heads, width)
    got = torch.autograd.grad((mine * weight).sum(), inputs)

    theirs, _ = modeling.torch_chunk_gated_delta_rule(
        *(t.unsqueeze(2).expand(-1, -1, heads, -1) for t in (query, key)),
        value,
        g=g,
        beta=beta,
        use_qk_l2norm_in_kernel=True,
    )
    wanted = torch.autograd.grad((theirs * weight).sum(), inputs)
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    for one, two in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, two, atol=2e-4 * float(two.abs().max()) + 1e-6, rtol=1e-3)


def test_inverse_of_the_worst_case() -> None:
    """All keys equal, no decay, full strength: the powers of L grow like binomials."""
    lower = torch.ones(1, 64, 64).tril(-1)
    inverse = delta_rule.UnitLowerInverse.apply(lower)
    torch.testing.assert_close(inverse @ (lower + torch.eye(64)), torch.eye(64)[None], atol=1e-5, rtol=0)


def test_backbone_equals_transformers() -> None:
    from transformers import Qwen3_5ForConditionalGeneration

    torch.manual_seed(0)
    mine = Backbone()
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    release = Qwen3_5ForConditionalGeneration(shape.release_config(shape.SPECIAL_TOKENS.index)).float()
    theirs = release.model.language_model
    theirs.load_state_dict(mine.state_dict(), strict=True)
    ids = torch.randint(9, shape.VOCABULARY, (2, 192))
    wanted = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state
    torch.testing.assert_close(mine(ids), wanted, atol=2e-4, rtol=1e-3)


def test_head_equals_release() -> None:
    code = release_code()
    tokenizer = batches.MemoTokenizer(TOKENIZER)
    examples = [e for e in batches.training_examples(1, 60) if batches.encode(code, tokenizer, e) is not None]
    pairs = [(e, batches.encode(code, tokenizer, e)) for e in examples]
    pairs = [(e, row) for e, row in pairs if len(row.ids) <= 512][:8]
    arrays = batches.collate([row for _, row in pairs], 512, len(pairs) + 1, 0)
    batch = Moved(arrays, torch.device("cpu"))
    torch.manual_seed(0)
    theirs, mine = code.JointSchemaHead(**shape.HEAD).eval(), BatchedHead().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    hidden, lm_head = torch.randn(len(pairs) + 1, 512, shape.HIDDEN), torch.randn(shape.VOCABULARY, shape.HIDDEN)
    table = mine(hidden, batch.ids, batch.head, lm_head)
    records = [code.encode_record(tokenizer, e.record) for e, _ in pairs]
    mask = (torch.arange(512) < batch.head.length[: len(pairs), None]).long()
    wanted = [q for r in theirs(hidden[:-1], batch.ids[:-1], mask, records, lm_head) for q in r]
    assert len(wanted) == len(table)
    for row, logits in zip(table, wanted, strict=True):
        torch.testing.assert_close(row[: len(logits)], logits, atol=1e-5, rtol=1e-4)
        assert torch.isinf(row[len(logits) :]).all()


def test_batches_are_fixed_and_deterministic() -> None:
    code, tokenizer = release_code(), batches.MemoTokenizer(TOKENIZER)
    rows = [batches.encode(code, tokenizer, e) for e in batches.training_examples(7, 120)]
    assert all(row is not None and len(row.ids) <= batches.LENGTHS[-1] for row in rows)
    made = list(batches.batched(rows, 12288, 0, rest=True))
    assert all(b["ids"].size == 12288 for b in made)
    assert sum(len(b["label"]) for b in made) == sum(len(row.questions) for row in rows)
    again = [batches.encode(code, tokenizer, e) for e in batches.training_examples(7, 120)]
    assert rows == again
