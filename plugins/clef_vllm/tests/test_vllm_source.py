"""What the plugin takes for granted about vLLM, without an engine: runs on every version, also from sources alone."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import reference_file

pytest.importorskip("vllm")

import vllm

from clef_vllm import ARCHITECTURE, TASK, checks, compat
from clef_vllm.release import ReleaseError

pytestmark = pytest.mark.every_version
NATIVE = compat.release_of(vllm.__version__) >= (0, 33)


def test_the_model_is_a_pooling_model_of_this_vllm() -> None:
    from vllm.model_executor.models.interfaces_base import is_pooling_model

    from clef_vllm.model import ClefForDecision

    assert is_pooling_model(ClefForDecision)


def test_weight_names() -> None:
    """Names of a release become names of parameters, and the parts of fused layers are known."""
    from clef_vllm.model import ClefForDecision

    names = ["model.language_model.layers.0.mlp.up_proj.weight", "model.visual.merger.norm.weight", "lm_head.weight"]
    assert ClefForDecision.hf_to_vllm_mapper.apply_list(names) == [
        "language_model.model.layers.0.mlp.up_proj.weight", "visual.merger.norm.weight",
        "language_model.lm_head.weight",
    ]  # fmt: skip
    fused = ClefForDecision.packed_modules_mapping
    assert fused["in_proj_qkvz"] == ["in_proj_qkv", "in_proj_z"]
    assert fused["gate_up_proj"] == ["gate_proj", "up_proj"]
    assert fused["qkv_proj"] == ["q_proj", "k_proj", "v_proj"]


def test_engine_arguments_exist() -> None:
    from vllm.engine.arg_utils import EngineArgs

    wanted = {"runner", "hf_overrides", "max_model_len", "kv_cache_memory_bytes", "limit_mm_per_prompt",
              "language_model_only", "cudagraph_capture_sizes", "gdn_prefill_backend", "enforce_eager"}  # fmt: skip
    assert wanted <= set(inspect.signature(EngineArgs).parameters)


def test_pooling_interface() -> None:
    """The task, the layout's way to the pooler, and the cursor over chunks."""
    from vllm import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    params = PoolingParams(task=TASK, extra_kwargs={"clef_questions": []})
    metadata = PoolingMetadata(
        prompt_lens=torch.tensor([3, 5]), prompt_token_ids=None, prompt_token_ids_cpu=torch.zeros(2, 5).int(),
        pooling_params=[params, params], pooling_states=[PoolingStates(), PoolingStates()],
    )  # fmt: skip
    metadata.build_pooling_cursor(np.array([3, 2]), seq_lens_cpu=torch.tensor([3, 2]), device=torch.device("cpu"))
    cursor = metadata.get_pooling_cursor()
    assert compat.finished(cursor) == [True, False]
    assert cursor.num_scheduled_tokens_cpu.tolist() == [3, 2]
    assert [len(ids) for ids in metadata.get_prompt_token_ids_cpu()] == [3, 5]


def converted(folder: Path, architecture: str) -> Any:
    """A release's configuration as vLLM leaves it when it decides what to run."""
    from transformers import AutoConfig
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    config = AutoConfig.from_pretrained(folder)
    config.architectures = [architecture]
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    convertor(config, config.get_text_config())
    return config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The part of a release that decides which class runs it."""
    text = {"model_type": "qwen3_5_text", "num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    (tmp_path / "joint_head_config.json").write_text(json.dumps({"hidden_size": 8}))
    (tmp_path / "joint_schema_model.py").write_bytes(reference_file().read_bytes())
    return tmp_path


def test_the_override_decides_which_class_runs(folder: Path) -> None:
    """With it ours, also where vLLM (0.33) has a class of its own; without it never ours, which is refused."""
    checks.check_architecture(converted(folder, ARCHITECTURE).architectures)
    stock = converted(folder, "Qwen3_5ForConditionalGeneration").architectures
    assert stock == (["ClefFlashForJointSchema"] if NATIVE else ["Qwen3_5ForConditionalGeneration"])
    with pytest.raises(ReleaseError, match="override did not take effect"):
        checks.check_architecture(stock)


@pytest.mark.skipif(not NATIVE, reason="vLLM has a class of its own for Clef-Flash from 0.33 on")
def test_vllms_own_head_takes_our_state_dict_and_stops_at_the_marker() -> None:
    from nano import HEAD
    from vllm.model_executor.models.clef_joint_schema import JointSchemaHead

    from clef_vllm.head import JointHead

    sizes: dict[str, Any] = dict(HEAD)
    theirs = {name: tensor.shape for name, tensor in JointSchemaHead(**sizes).state_dict().items()}
    assert theirs == {name: tensor.shape for name, tensor in JointHead(**sizes).state_dict().items()}
    with pytest.raises(TypeError, match="requires_clef_vllm"):
        JointSchemaHead(**sizes, requires_clef_vllm="0.1.0")


def test_kernels_of_the_cpu_can_be_added() -> None:
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    from clef_vllm import cpu_kernels

    cpu_kernels.register_cpu_kernels()
    assert not cpu_kernels.register_cpu_kernels(), "the second call must add nothing"
    assert linear._POSSIBLE_MXFP4_KERNELS[PlatformEnum.CPU][0] is cpu_kernels.EmulatedMxFp4Kernel
    assert linear._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CPU][0] is cpu_kernels.EmulatedNvFp4Kernel
    assert linear._POSSIBLE_FP8_KERNELS[PlatformEnum.CPU][0] is cpu_kernels.EmulatedFp8Kernel
