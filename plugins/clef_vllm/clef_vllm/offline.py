"""`ClefVLLM`: a Clef release in this process, without a server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from clef_vllm import checks, compat
from clef_vllm.engine import default_max_model_len, engine_options, logits_of, pooling_params
from clef_vllm.probe import Logits, run_probe
from clef_vllm.release import Release
from clef_vllm.requests import Encoder, Prepared, by_question, check_request
from clef_vllm.sums import compare_files


class ClefVLLM:
    """Answers records with vLLM. Many records in one call are batched by vLLM; close it (or use `with`) when done."""

    def __init__(
        self,
        path: str | Path,
        max_model_len: int | None = None,
        gpu_memory_utilization: float | None = None,
        kv_cache_gib: float | None = None,
        images: int = 4,
        videos: int = 0,
        lexical_table: str = "device",
        check_probe: bool = True,
        **engine: Any,
    ) -> None:
        """
        path: release folder. max_model_len: longest prompt in tokens, 16,384 by default; longer states are cut.
        gpu_memory_utilization: share of the GPU, or kv_cache_gib: a fixed KV cache. images, videos: the most per
        record; without either the vision tower is left out. lexical_table: "cpu" keeps lm_head's int8 rows in host
        memory. Further keywords go to `vllm.LLM` (tensor_parallel_size, max_num_batched_tokens …).
        """
        import vllm
        from vllm.logger import init_logger

        compat.check_version(vllm.__version__)
        self.release = Release.open(path)
        checks.check_marker(self.release)
        log = init_logger("vllm.clef_vllm").info
        log(compare_files(self.release.path))
        length = max_model_len or default_max_model_len(self.release.path)
        self.encoder = Encoder(path, length)
        options = engine_options(
            self.release, length, gpu_memory_utilization, kv_cache_gib, images, videos, lexical_table, **engine
        )
        self.llm = vllm.LLM(**options)
        config = self.llm.llm_engine.vllm_config.model_config
        try:
            checks.check_architecture(config.architectures)
            if check_probe:
                log(run_probe(self.release.probe, self.logits))
        except BaseException:
            self.close()
            raise

    def systemone(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one SystemOne request body as the release's `systemone()` does."""
        check_request(request)
        ((prepared, length, logits),) = self._run([request])
        return {
            "model": request["model"],
            "answers": self.encoder.answers(request, prepared, logits),
            "usage": {"input_tokens": length, "output_tokens": 0},
        }

    def probabilities(self, records: Sequence[Mapping[str, Any]]) -> list[Logits]:
        """Per record {question id: {option id: probability}}, unrounded."""
        results = []
        for prepared, _, logits in self._run(records):
            counts = [len(options) for _, options in prepared.options]
            flat = torch.cat([part.softmax(-1) for part in torch.split(logits, counts)])
            results.append(by_question(prepared, flat))
        return results

    def logits(self, records: Sequence[Mapping[str, Any]]) -> list[Logits]:
        """Per record {question id: {option id: logit}} as the head computed them."""
        return [by_question(prepared, logits) for prepared, _, logits in self._run(records)]

    def _run(self, records: Sequence[Mapping[str, Any]]) -> list[tuple[Prepared, int, torch.Tensor]]:
        """Per record what was asked, the prompt's length after image expansion, and the logits [N] float32."""
        for record in records:
            check_request(record, need_model=False)
        prepared = [self.encoder.encode(record) for record in records]
        outputs = self.llm.encode(
            [compat.token_prompt(one.token_ids, one.images, one.videos) for one in prepared],
            pooling_params=[pooling_params(one) for one in prepared],
            pooling_task=pooling_params(prepared[0]).task,
            use_tqdm=False,
        ) if prepared else []  # fmt: skip
        return [
            (one, len(output.prompt_token_ids), logits_of(one, output))
            for one, output in zip(prepared, outputs, strict=True)
        ]

    def close(self) -> None:
        """End the engine's processes and free its memory."""
        if hasattr(self, "llm"):
            self.llm.llm_engine.engine_core.shutdown()
            del self.llm

    def __enter__(self) -> "ClefVLLM":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
