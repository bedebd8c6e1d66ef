"""The vLLM model: Qwen3.5 as a pooling model whose pooler is the joint head."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.logger import init_logger
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.qwen3_5 import Qwen3_5ForConditionalGeneration, Qwen3_5ProcessingInfo
from vllm.model_executor.models.qwen3_vl import Qwen3VLDummyInputsBuilder, Qwen3VLMultiModalProcessor
from vllm.multimodal import MULTIMODAL_REGISTRY

from clef_vllm import arrivals, checks, compat
from clef_vllm.head import JointHead
from clef_vllm.indices import HeadBatch
from clef_vllm.pooler import ClefPooler
from clef_vllm.release import Release
from clef_vllm.tables import HostTable, Int8Table

logger = init_logger("vllm.clef_vllm")


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor, info=Qwen3_5ProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class ClefForDecision(Qwen3_5ForConditionalGeneration):
    """Clef and Clef-Flash: the backbone as vLLM builds it, the joint head in place of text generation."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any, prefix: str = "model") -> None:
        release = Release.open(vllm_config.model_config.model)
        checks.check_marker(release)
        checks.check_ranks(vllm_config.model_config.hf_text_config, get_tensor_model_parallel_world_size())
        on_host = checks.lexical_table(release, vllm_config.model_config.hf_config) == "cpu"
        with (
            compat.replaced_tables(Int8Table, HostTable if on_host else Int8Table) if release.tables else nullcontext()
        ):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
        # Assigned after super().__init__, which resets the module.
        self.release = release
        head = JointHead(**release.head_config).to(vllm_config.model_config.dtype)
        self.pooler = ClefPooler(head, self._lexical_rows)

    def _lexical_rows(self, batch: HeadBatch) -> Tensor:
        """lm_head rows [U, H] of the batch's vocabulary ids [U]. Every tensor-parallel rank must call this together."""
        table = self.language_model.lm_head
        rows: Tensor
        if isinstance(table, HostTable):
            rows = table.lookup(batch.lexical_ids_host, batch.lexical_ids.device)
        elif isinstance(table, Int8Table):
            rows = table(batch.lexical_ids)
        elif get_tensor_model_parallel_world_size() == 1:
            rows = table.weight[batch.lexical_ids]
        else:
            # The lm_head's own forward is disabled in vLLM; the embedding's gathers the shards.
            rows = VocabParallelEmbedding.forward(table, batch.lexical_ids)
        return rows

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load backbone, head and tables, then check that nothing expected was missing."""
        watch = arrivals.WeightWatch(self.packed_modules_mapping)
        head = load_file(self.release.head_weights)
        # Without an index vLLM reads every safetensors file in the folder, so the head's tensors arrive here as well.
        loaded: set[str] = super().load_weights(watch.observe(pair for pair in weights if pair[0] not in head))
        arrivals.check_head(self.pooler.head.state_dict(), head, self.release.head_weights)
        with torch.no_grad():
            self.pooler.head.load_state_dict(head, strict=True)
        loaded |= {f"pooler.head.{name}" for name in head}
        if self.release.tables:
            self.language_model.model.embed_tokens.load(self.release.tables, "embed_tokens")
            self.language_model.lm_head.load(self.release.tables, "lm_head")
        watch.check_fused()
        parameters = {name for name, _ in self.named_parameters()}
        arrivals.check_loaded(parameters, loaded)
        images = any(name.startswith("visual.") for name in parameters)
        renamed = self.hf_to_vllm_mapper.apply_list(sorted(watch.names))
        arrivals.check_skipped(renamed, loaded, self.packed_modules_mapping, images)
        for line in checks.kernel_lines(self):
            logger.info(line)
        return loaded
