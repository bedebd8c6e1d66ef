"""Batches and logits."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clefquant.release.load import batches, option_logits


@given(st.lists(st.integers(1, 900), max_size=60), st.integers(1, 4000))
def test_batches_cover_everything_within_the_budget(lengths, budget):
    groups = list(batches(lengths, budget))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(len(group) == 1 or max(lengths[i] for i in group) * len(group) <= budget for group in groups)


def test_batching_changes_no_answer(tiny_loaded, encoded):
    together = dict(option_logits(tiny_loaded, encoded))
    alone = dict(option_logits(tiny_loaded, encoded, batch_tokens=1))
    assert together.keys() == alone.keys() == set(range(len(encoded)))
    for index, questions in together.items():
        for a, b in zip(questions, alone[index], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
