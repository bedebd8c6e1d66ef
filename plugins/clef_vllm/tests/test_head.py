"""Our joint head against the release's, and the isolation of requests that share a step."""

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from reference import load_reference

from clef_vllm.head import JointHead
from clef_vllm.indices import MAX_BUCKET_TOKENS, build_batch
from clef_vllm.layout import Schema, parse_layout, schema_layout

CONFIG = {"hidden_size": 48, "width": 32, "routing_layers": 2, "layers": 3, "heads": 4, "feedforward": 64}
VOCABULARY = 200
SCHEMAS = 1000


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return load_reference()


@pytest.fixture(scope="module")
def heads(release: ModuleType) -> tuple[Any, JointHead, torch.Tensor]:
    """The release's head with random weights, ours with the same state dict, and a random lm_head."""
    torch.manual_seed(0)
    theirs = release.JointSchemaHead(**CONFIG).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        theirs.prior_logit_scale.fill_(1.0)
        theirs.joint_logit_scale.fill_(1.5)
    ours = JointHead(**CONFIG).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours, torch.randn(VOCABULARY, CONFIG["hidden_size"])


def random_record(
    release: ModuleType, rng: random.Random, questions: int, most_options: int, least_options: int = 1
) -> Any:
    """Random prompt whose spans lie in order, as the encoder writes them, with text before, between and after."""
    at, encoded = rng.randint(0, 200), []
    for number in range(questions):
        question = (at, at + rng.randint(1, 9))
        at, spans = question[1] + rng.randint(0, 2), []
        for _ in range(rng.randint(least_options, most_options)):
            spans.append((at, at + rng.randint(1, 4)))
            at = spans[-1][1] + rng.randint(0, 1)
        names = tuple(str(i) for i in range(len(spans)))
        encoded.append(release.EncodedQuestion(str(number), rng.randint(0, 2), question, tuple(spans), names))
    ids = tuple(rng.randrange(VOCABULARY) for _ in range(at + rng.randint(0, 5)))
    return release.EncodedRecord(ids, tuple(encoded), "test")


def schema_of(record: Any) -> Schema:
    schema = parse_layout(schema_layout(record), len(record.input_ids))
    assert schema is not None
    return schema


@torch.inference_mode()
def run_ours(
    head: JointHead, records: list[Any], hidden: list[torch.Tensor], table: torch.Tensor
) -> list[torch.Tensor]:
    batch = build_batch(
        [schema_of(record) for record in records], [np.array(record.input_ids) for record in records], table.device
    )
    logits = head(torch.cat(hidden), table[batch.lexical_ids], batch)
    return list(torch.split(logits, batch.options_per_request))


@torch.inference_mode()
def run_theirs(head: Any, record: Any, hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    ids = torch.tensor([record.input_ids])
    return torch.cat(head(hidden[None], ids, torch.ones_like(ids), [record], table)[0])


def sizes(rng: random.Random) -> tuple[int, int]:
    """Mostly everyday schemas, with the extremes (64 questions, 255 options) in the mix."""
    kind = rng.random()
    if kind < 0.05:
        return rng.randint(1, 2), 255
    if kind < 0.10:
        return 64, rng.randint(1, 8)
    return rng.randint(1, 12), rng.randint(1, 20)


def test_thousand_schemas_match_the_release_in_float32(release: ModuleType, heads: Any) -> None:
    theirs, ours, table = heads
    rng = random.Random(1)
    records = [random_record(release, rng, *sizes(rng)) for _ in range(SCHEMAS - 2)]
    records += [random_record(release, rng, 64, 1), random_record(release, rng, 2, 255, least_options=255)]
    questions = [len(record.questions) for record in records]
    options = [len(question.option_spans) for record in records for question in record.questions]
    assert (min(questions), max(questions), min(options), max(options)) == (1, 64, 1, 255)
    assert {question.question_type for record in records for question in record.questions} == {0, 1, 2}
    hidden = [torch.randn(len(record.input_ids), CONFIG["hidden_size"]) for record in records]
    worst, spread, at = 0.0, 0.0, 0
    while at < len(records):
        step = rng.choice([1, 3, 17, 40])
        mine = run_ours(ours, records[at : at + step], hidden[at : at + step], table)
        for record, states, logits in zip(records[at : at + step], hidden[at : at + step], mine, strict=True):
            expected = run_theirs(theirs, record, states, table)
            assert logits.shape == expected.shape
            worst = max(worst, float((logits - expected).abs().max()))
            spread = max(spread, float(expected.max() - expected.min()))
        at += step
    assert spread > 1.0, "the logits hardly differ: the comparison would prove nothing"
    assert worst <= 1e-5, f"largest difference {worst:.2e}"


def test_bfloat16_stays_within_the_releases_own_spread(release: ModuleType, heads: Any) -> None:
    theirs, _, table = heads
    rng = random.Random(2)
    records = [random_record(release, rng, 4, 12) for _ in range(40)]
    hidden = [torch.randn(len(record.input_ids), CONFIG["hidden_size"]).bfloat16() for record in records]
    exact = [run_theirs(theirs, r, h.float(), table.bfloat16().float()) for r, h in zip(records, hidden, strict=True)]
    low_theirs, low_ours = release.JointSchemaHead(**CONFIG).eval(), JointHead(**CONFIG).eval()
    low_theirs.load_state_dict(theirs.state_dict())
    low_ours.load_state_dict(theirs.state_dict())
    low_theirs, low_ours = low_theirs.bfloat16(), low_ours.bfloat16()
    reference = [run_theirs(low_theirs, r, h, table.bfloat16()) for r, h in zip(records, hidden, strict=True)]
    mine = run_ours(low_ours, records, hidden, table.bfloat16())

    def error(logits: list[torch.Tensor]) -> float:
        return max(float((a.float() - b).abs().max()) for a, b in zip(logits, exact, strict=True))

    assert error(mine) <= error(reference)


@pytest.mark.parametrize("position", [0, 3, 6])
def test_nan_never_reaches_a_neighbour(release: ModuleType, heads: Any, position: int) -> None:
    _, ours, table = heads
    rng = random.Random(3)
    records = [random_record(release, rng, rng.randint(1, 5), 9) for _ in range(7)]
    hidden = [torch.randn(len(record.input_ids), CONFIG["hidden_size"]) for record in records]
    clean = run_ours(ours, records, hidden, table)
    hidden[position] = torch.full_like(hidden[position], float("nan"))
    dirty = run_ours(ours, records, hidden, table)
    assert dirty[position].isnan().all()
    for number in set(range(7)) - {position}:
        torch.testing.assert_close(dirty[number], clean[number], rtol=0, atol=0)


def test_a_request_does_not_depend_on_its_company(release: ModuleType, heads: Any) -> None:
    _, ours, table = heads
    rng = random.Random(4)
    records = [random_record(release, rng, rng.randint(1, 9), 30) for _ in range(12)]
    hidden = [torch.randn(len(record.input_ids), CONFIG["hidden_size"]) for record in records]
    together = run_ours(ours, records, hidden, table)
    for record, states, logits in zip(records, hidden, together, strict=True):
        alone = run_ours(ours, [record], [states], table)[0]
        torch.testing.assert_close(alone, logits, rtol=0, atol=1e-5)


def test_buckets_bound_padding(release: ModuleType) -> None:
    """Every request is in one bucket, padding stays below a factor of two, and a bucket has a largest size."""
    rng = random.Random(5)
    records = [random_record(release, rng, rng.randint(1, 8), 6) for _ in range(300)]
    batch = build_batch([schema_of(r) for r in records], [np.array(r.input_ids) for r in records], torch.device("cpu"))
    covered = torch.cat([bucket.memory.packed for bucket in batch.buckets]).sort().values
    assert covered.tolist() == list(range(sum(len(r.input_ids) for r in records)))
    for bucket in batch.buckets:
        assert bucket.memory.places.numel() <= MAX_BUCKET_TOKENS + len(bucket.memory.lengths) * 8
        assert bucket.memory.places.numel() <= 2 * int(bucket.memory.lengths.sum()) + 8 * len(bucket.memory.lengths)


def test_unknown_configuration_keys_are_refused() -> None:
    with pytest.raises(TypeError, match="surprise"):
        JointHead(**CONFIG, surprise=1)
    with pytest.raises(ValueError, match="width 32 is not divisible by heads 5"):
        JointHead(**{**CONFIG, "heads": 5})
