"""The engine, the encoders and the release's formatter behind one service. Imports torch and vLLM: load it late."""

import asyncio
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from clef_vllm import checks, compat
from clef_vllm.engine import EngineError, default_max_model_len, engine_options, logits_of, pooling_params
from clef_vllm.probe import Logits, Probe, read_probe, run_probe
from clef_vllm.release import Release
from clef_vllm.requests import Encoder, Prepared, by_question
from clef_vllm.server.faults import EngineDied
from clef_vllm.server.flags import EngineFlags, vllm_flags
from clef_vllm.server.images import ImageDecoder
from clef_vllm.sums import compare_files

logger = logging.getLogger("vllm.clef_vllm.server")

SHORT_STATE = 2**17  # characters; longer states are tokenized in a lane of their own and delay only each other


class Backend:
    """One engine (or `--dp` of them) with its tokenizers. `load` blocks for as long as the model takes."""

    def __init__(self, release: Release, engine: Any, decoder: ImageDecoder) -> None:
        self.release, self.engine, self.decoder = release, engine, decoder
        self.max_length: int = engine.vllm_config.model_config.max_model_len
        # Fast tokenizers must not be shared by threads: one encoder and one thread for each lane.
        self.encoders = [Encoder(release.path, self.max_length) for _ in range(2)]
        self._lanes = [ThreadPoolExecutor(1, name) for name in ("clef-encode-short", "clef-encode-long")]
        self._decoding = ThreadPoolExecutor(2, "clef-decode")

    @classmethod
    def load(cls, flags: EngineFlags, decoder: ImageDecoder, progress: Callable[[str], None]) -> "Backend":
        """Build the engine and check that it serves this release. ReleaseError, VersionError, ValueError for flags."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        release = Release.open(flags.model)
        checks.check_marker(release)
        progress("comparing files with their checksums")
        logger.info(compare_files(release.path))
        progress("reading weights and building the engine")
        arguments = AsyncEngineArgs(**compat.engine_arguments(AsyncEngineArgs, engine_arguments(release, flags)))
        engine = AsyncLLM.from_engine_args(arguments)
        checks.check_architecture(engine.vllm_config.model_config.architectures)
        return cls(release, engine, decoder)

    @property
    def dead(self) -> bool:
        return bool(self.engine.errored)

    @property
    def probe(self) -> Probe | None:
        return read_probe(self.release.probe) if self.release.probe else None

    def check_probe(self, found: list[Logits]) -> str:
        """A line for the log; ReleaseError where the answers are not those the release was verified with."""
        return run_probe(self.release.probe, lambda _: found)

    async def decode(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its images and videos decoded. RequestError names the one that is wrong."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, self.decoder.media, record)

    async def encode(self, record: dict[str, Any]) -> Prepared:
        lane = int(is_longer(record["state"], SHORT_STATE))
        encode = functools.partial(self.encoders[lane].encode, record)
        return await asyncio.get_running_loop().run_in_executor(self._lanes[lane], encode)

    async def infer(self, prepared: Prepared, request_id: str) -> tuple[int, torch.Tensor]:
        """Prompt length after image expansion and logits [N]. A cancelled caller cancels the request in the engine."""
        params = pooling_params(prepared)
        # LLM.encode does this for the offline class; AsyncLLM leaves it to the caller. It is what keeps the prefix
        # cache from hiding prompt tokens from the head.
        params.verify(self.engine.vllm_config.model_config)
        prompt = compat.token_prompt(prepared.token_ids, prepared.images, prepared.videos)
        result = None
        try:
            async for output in self.engine.encode(prompt, params, request_id):
                result = output
        except Exception as error:
            if self.dead:
                raise EngineDied() from error
            raise EngineError(f"the engine failed: {error}") from error
        if result is None:
            raise EngineError("the engine returned nothing")
        return len(result.prompt_token_ids), logits_of(prepared, result)

    def answers(self, record: dict[str, Any], prepared: Prepared, logits: torch.Tensor) -> dict[str, Any]:
        return self.encoders[0].answers(record, prepared, logits)

    def logits(self, prepared: Prepared, logits: torch.Tensor) -> Logits:
        return by_question(prepared, logits)

    def close(self) -> None:
        self.engine.shutdown()
        for pool in (*self._lanes, self._decoding):
            pool.shutdown(wait=False, cancel_futures=True)


def engine_arguments(release: Release, flags: EngineFlags) -> dict[str, Any]:
    """Arguments of vLLM's engine; flags of vLLM's own win over ours."""
    # Autotuning NVFP4 kernels can deadlock across tensor-parallel ranks.
    autotune = {"auto": False if flags.tp > 1 else None, "on": True, "off": False}[flags.flashinfer_autotune]
    ours = {
        "tensor_parallel_size": flags.tp,
        "data_parallel_size": flags.dp,
        "gdn_prefill_backend": flags.gdn_backend,
        "enforce_eager": flags.enforce_eager or None,
        **compat.autotune(autotune),
    }
    return engine_options(
        release, flags.max_model_len or default_max_model_len(Path(flags.model)), flags.gpu_memory_utilization,
        flags.kv_cache_gib, flags.images, flags.videos, flags.lexical_table, **{**ours, **vllm_flags(flags.vllm)},
    )  # fmt: skip


def is_longer(value: Any, limit: int) -> bool:
    """Whether a JSON value holds more than about `limit` characters; looks at no more than that."""
    left, rest = limit, [value]
    while rest and left >= 0:
        value = rest.pop()
        left -= len(value) if isinstance(value, str) else 4
        if isinstance(value, dict):
            rest += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            rest += value
    return left < 0
