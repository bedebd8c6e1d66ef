"""The differences between vLLM versions that compat.py smooths over."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from clef_vllm import compat


def test_versions() -> None:
    assert compat.release_of("0.32.0+cpu") == (0, 32)
    for good in ("0.26.0", "0.28.0", "0.32.1"):
        assert compat.check_version(good) is None
    assert "newer than 0.32" in (compat.check_version("0.33.0") or "")
    with pytest.raises(compat.VersionError, match=r"needs vLLM 0\.26 or newer, found 0\.25\.1"):
        compat.check_version("0.25.1")


def test_finished_in_both_forms() -> None:
    assert compat.finished(SimpleNamespace(is_finished=lambda: torch.tensor([True, False]))) == [True, False]
    assert compat.finished(SimpleNamespace(get_finished_mask=lambda: [False, True])) == [False, True]


def test_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = ModuleType("vllm.inputs"), ModuleType("vllm.inputs")
    new.tokens_input = lambda ids: {"type": "token", "prompt_token_ids": ids}  # type: ignore[attr-defined]
    for module, expected in ((old, {"prompt_token_ids": [1, 2]}), (new, {"type": "token", "prompt_token_ids": [1, 2]})):
        package = ModuleType("vllm")
        package.inputs = module  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vllm", package)
        monkeypatch.setitem(sys.modules, "vllm.inputs", module)
        assert compat.token_prompt([1, 2]) == expected
    assert compat.token_prompt([1], ["image"]) == {"prompt_token_ids": [1], "multi_modal_data": {"image": ["image"]}}


def test_engine_arguments() -> None:
    def known(model: str, seed: int = 0) -> None: ...

    assert compat.engine_arguments(known, {"model": "m", "seed": None}) == {"model": "m"}
    with pytest.raises(compat.VersionError, match="no engine argument gdn"):
        compat.engine_arguments(known, {"gdn": 1})


def test_tables_are_put_back_after_an_error() -> None:
    module = pytest.importorskip("vllm.model_executor.models.qwen3_5")
    before = module.VocabParallelEmbedding, module.ParallelLMHead
    seen = []

    def fail() -> None:
        with compat.replaced_tables(dict, list):
            seen.extend([module.VocabParallelEmbedding, module.ParallelLMHead])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert seen == [dict, list]
    assert (module.VocabParallelEmbedding, module.ParallelLMHead) == before


def test_kernels_of_a_scheme() -> None:
    assert compat.scheme_kernels(SimpleNamespace(kernel=1)) == [1]
    assert compat.scheme_kernels(SimpleNamespace(fp8_linear=2)) == [2]
    assert compat.scheme_kernels(SimpleNamespace(ocp_mx_linear=3)) == [3]
    assert compat.scheme_kernels(None) == []
