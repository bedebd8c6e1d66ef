import pytest
import torch
from PIL import Image

from clefquant.calibration.stored import StoredRecord
from clefquant.release.head import batched_head, plan_head
from clefquant.release.load import load_release, option_logits
from clefquant.sensitivity.continuation import in_record_order, prepare, run_layers, run_mixer, run_mlp
from clefquant.sensitivity.shards import Shard, make_shards


@pytest.fixture(scope="module")
def shard(records) -> Shard:
    return make_shards(records, 1024, 10**9)[0]


@torch.inference_mode()
def test_batched_head_equals_the_release_s_head(tiny_loaded, encoded):
    batch = tiny_loaded.code.collate_records(encoded[:5], 0, tiny_loaded.device)
    table = tiny_loaded.model.language_model.get_output_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*batch["input_ids"].shape, table.shape[1], generator=generator)
    hidden[batch["attention_mask"] == 0] = torch.nan  # padding must not reach any logit
    expected = tiny_loaded.model.head(hidden, batch["input_ids"], batch["attention_mask"], encoded[:5], table)
    plan = plan_head(encoded[:5], batch["input_ids"], batch["attention_mask"], table, hidden.dtype)
    found = batched_head(tiny_loaded.model.head, plan, hidden)
    flat = torch.cat([logits for record in expected for logits in record])
    torch.testing.assert_close(found, flat, atol=2e-5, rtol=0)


def test_gradients_are_finite_when_records_have_different_numbers_of_questions(tiny_loaded):
    options = {"type": "noul", "instructions": "late?"}
    records = [{"state": "x" * 9**count, "questions": {f"q{i}": options for i in range(count)}} for count in (1, 2)]
    encoded = [tiny_loaded.code.encode_record(tiny_loaded.processor.tokenizer, record) for record in records]
    batch = tiny_loaded.code.collate_records(encoded, 0, tiny_loaded.device)
    table = tiny_loaded.model.language_model.get_output_embeddings().weight
    hidden = torch.randn(*batch["input_ids"].shape, table.shape[1], requires_grad=True)
    plan = plan_head(encoded, batch["input_ids"], batch["attention_mask"], table, hidden.dtype)
    batched_head(tiny_loaded.model.head, plan, hidden).sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


@torch.inference_mode()
def test_continuing_from_any_half_layer_equals_the_full_forward_bit_for_bit(tiny_loaded, shard):
    for batch, hidden in prepare(tiny_loaded, shard):
        expected = run_layers(tiny_loaded, batch, hidden, 0)
        for layer in range(len(tiny_loaded.text_model.layers)):
            whole = tiny_loaded.text_model.layers[layer](hidden, **batch.calls[layer])
            middle = run_mixer(tiny_loaded, batch, hidden, layer)
            hidden = run_mlp(tiny_loaded, middle, layer)
            assert torch.equal(hidden, whole)
            assert torch.equal(run_layers(tiny_loaded, batch, hidden, layer + 1), expected)


@torch.inference_mode()
def test_layers_see_what_the_model_gives_them(tiny_loaded, shard):
    """Positions and masks are the model's own: the decoder's last hidden state is bit-equal."""
    batch, hidden = next(prepare(tiny_loaded, shard))
    collated = tiny_loaded.code.collate_records(
        [shard.records[i].encoded for i in batch.records], 0, tiny_loaded.device
    )
    expected = tiny_loaded.text_model(
        input_ids=collated["input_ids"], attention_mask=collated["attention_mask"], use_cache=False
    ).last_hidden_state
    for layer, call in zip(tiny_loaded.text_model.layers, batch.calls, strict=True):
        hidden = layer(hidden, **call)
    assert torch.equal(tiny_loaded.text_model.norm(hidden), expected)


@torch.inference_mode()
def test_logits_come_in_record_order(tiny_loaded, shard, records):
    parts = [(batch, run_layers(tiny_loaded, batch, hidden, 0)) for batch, hidden in prepare(tiny_loaded, shard)]
    expected = dict(option_logits(tiny_loaded, [record.encoded for record in records], batch_tokens=1024))
    flat = torch.cat([torch.cat(expected[index]) for index in range(len(records))])
    torch.testing.assert_close(in_record_order(shard, parts), flat, atol=2e-5, rtol=0)
    assert len(shard.groups) > 1
    assert sorted(i for group in shard.groups for i in group) == list(range(len(records)))


def test_shards_cover_the_set_and_their_hash_knows_the_batches(records):
    shards = make_shards(records, 4096, 4000)
    assert len(shards) > 1
    assert sorted(r.record_id for shard in shards for r in shard.records) == sorted(r.record_id for r in records)
    assert make_shards(records, 1024, 10**9)[0].fingerprint != make_shards(records, 512, 10**9)[0].fingerprint
    assert all(len(group) == 1 for group in shards[0].regrouped().groups)
    alone = Shard(shards[0].records, 1)
    assert any(len(group) > 1 for group in alone.regrouped().groups)


@torch.inference_mode()
def test_records_with_images_go_through_the_vision_tower(nano):
    loaded = load_release(nano)
    question = {"q": {"type": "noul", "instructions": "red?"}}
    stored = []
    for number in range(3):
        image = Image.new("RGB", (64 + 32 * number, 64), (200, 10 * number, 0))
        record = {"state": "look", "questions": question, **({"images": [image]} if number else {})}
        encoded = loaded.code.encode_record(loaded.processor.tokenizer, record, processor=loaded.processor)
        stored.append(StoredRecord(f"r{number}", "g", "s", {}, {}, encoded))
    (shard,) = make_shards(stored, 4096, 10**9)
    parts = [(batch, run_layers(loaded, batch, hidden, 0)) for batch, hidden in prepare(loaded, shard)]
    expected = dict(option_logits(loaded, [record.encoded for record in stored]))
    flat = torch.cat([torch.cat(expected[index]) for index in range(3)])
    torch.testing.assert_close(in_record_order(shard, parts), flat, atol=2e-5, rtol=0)
    assert not torch.equal(expected[1][0], expected[2][0])
