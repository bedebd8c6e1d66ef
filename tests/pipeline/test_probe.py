"""The probe of a release: records that every healthy server answers alike, and that need nothing beside them."""

from dataclasses import replace

import pytest
import torch

from clefquant.calibration.stored import open_set
from clefquant.pipeline import probe
from clefquant.pipeline.probe import largest_change, make_probe, simulated_logits
from clefquant.release.code import release_code


@pytest.fixture(scope="module")
def records(tiny, game_set):
    return list(open_set(game_set(6), tiny.path, release_code(tiny.path)))


def test_it_holds_answers_to_the_steadiest_records(tiny, records):
    found = make_probe(tiny.path, records)
    assert len(found["records"]) == 3
    assert found["tolerance"] == probe.TOLERANCE
    chosen = [record for record in records if record.record in found["records"]]
    again = simulated_logits(tiny.path, chosen, dtype=torch.bfloat16)
    given = [found["logits"][found["records"].index(record.record)] for record in chosen]
    assert max(map(largest_change, given, again)) < probe.TOLERANCE


def test_records_with_media_are_left_out(tiny, records):
    first = min(records, key=lambda record: record.tokens)
    seen = replace(first, encoded=replace(first.encoded, media={"pixel_values": torch.zeros(1)}))
    others = [record for record in records if record is not first]
    assert make_probe(tiny.path, [seen, *others]) == make_probe(tiny.path, others)
    assert make_probe(tiny.path, [seen]) is None


def test_an_answer_that_turns_on_rounding_is_left_out(tiny, records, monkeypatch):
    """The widest change that the probe takes is well within what a server is allowed."""
    calls = []

    def unsteady(folder, chosen, *, dtype=None, batch_tokens=0):
        calls.append(dtype)
        moved = 0.3 if dtype == torch.bfloat16 else 0.0
        steady = len(chosen) - len(records) + 1  # how many of them
        return [{"q": {"a": 0.0, "b": moved if number >= steady else 0.0}} for number in range(len(chosen))]

    monkeypatch.setattr(probe, "simulated_logits", unsteady)
    found = make_probe(tiny.path, records)
    assert len(found["records"]) == 1
    assert calls == [None, torch.bfloat16]
