"""The patch of llm-compressor's fused groups."""

import importlib.metadata

import pytest
from llmcompressor.observers import helpers

from clefquant.errors import PrerequisiteError
from clefquant.recipes.fused import GDN_PAIR, fused_gdn_inputs


def test_restores_the_list_also_after_a_failure():
    before = list(helpers.FUSED_LAYER_NAMES)
    assert GDN_PAIR not in before, "llm-compressor knows the pair now: drop the patch"
    with pytest.raises(KeyError), fused_gdn_inputs():
        assert GDN_PAIR in helpers.FUSED_LAYER_NAMES
        raise KeyError
    assert before == helpers.FUSED_LAYER_NAMES


def test_refuses_a_version_it_was_not_tested_with(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.15.0")
    with pytest.raises(PrerequisiteError, match=r"llmcompressor 0\.15\.0 is installed"), fused_gdn_inputs():
        pass
