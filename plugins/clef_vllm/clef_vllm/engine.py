"""Engine arguments and results shared by the offline class and the server."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clef_vllm.layout import ARCHITECTURE, EXTRA_KEY, LEXICAL_KEY, TASK
from clef_vllm.release import Release
from clef_vllm.requests import Prepared

if TYPE_CHECKING:
    import torch

# Token counts that CUDA graphs are captured for. Every step here is a prefill; vLLM's own list is made for decoding
# (dozens of sizes up to 512), so records above 512 tokens would run without graphs. A step is padded to the next size.
GRAPH_TOKENS = [*range(64, 512, 64), *range(512, 1024, 64), *range(1024, 2049, 128)]


class EngineError(RuntimeError):
    """The engine returned no usable result for a request that was well formed."""


def engine_options(
    release: Release,
    max_model_len: int,
    gpu_memory_utilization: float | None = None,
    kv_cache_gib: float | None = None,
    images: int = 4,
    videos: int = 0,
    lexical_table: str = "device",
    **options: Any,
) -> dict[str, Any]:
    """Keyword arguments for `vllm.LLM` and `AsyncEngineArgs`; None leaves a choice to vLLM.

    lexical_table: "cpu" keeps lm_head's int8 rows in host memory, "device" beside the model.
    """
    from vllm.platforms import current_platform

    graphs = current_platform.is_cuda() and not options.get("enforce_eager") and "compilation_config" not in options
    wanted = {
        "model": str(release.path),
        "runner": "pooling",
        "hf_overrides": {"architectures": [ARCHITECTURE], LEXICAL_KEY: lexical_table},
        "max_model_len": max_model_len,
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_cache_memory_bytes": None if kv_cache_gib is None else int(kv_cache_gib * 2**30),
        "cudagraph_capture_sizes": GRAPH_TOKENS if graphs else None,
        # Without the vision tower a text server saves its memory.
        **(
            {"limit_mm_per_prompt": {"image": images, "video": videos}}
            if images or videos
            else {"language_model_only": True}
        ),
        **options,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def default_max_model_len(path: Path) -> int:
    """16,384 as in the release's encoder, or less where the model's positions end earlier."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    return min(16384, int(getattr(config.get_text_config(), "max_position_embeddings", 16384)))


def pooling_params(prepared: Prepared) -> Any:
    from vllm import PoolingParams

    return PoolingParams(task=TASK, extra_kwargs={EXTRA_KEY: prepared.layout})


def logits_of(prepared: Prepared, output: Any) -> "torch.Tensor":
    """The option logits [N] of a vLLM output. EngineError if there are none or some are not finite."""
    data: torch.Tensor = output.outputs.data.float().reshape(-1)
    expected = sum(len(options) for _, options in prepared.options)
    if len(data) != expected:
        raise EngineError(f"the engine returned {len(data)} logits for {expected} options")
    if not bool(data.isfinite().all()):
        raise EngineError("the engine returned logits that are not finite")
    return data
