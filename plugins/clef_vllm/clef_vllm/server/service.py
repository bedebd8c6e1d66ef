"""One engine behind the server: start, warm-up, answers. No HTTP in here."""

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from clef_vllm import checks, compat
from clef_vllm.engine import EngineError, logits_of, pooling_params
from clef_vllm.probe import Logits, read_probe, run_probe
from clef_vllm.release import Release
from clef_vllm.requests import Encoder, Limits, Prepared, RequestError, by_question, check_request
from clef_vllm.server.images import decode_image

WARM_UP = {
    "model": "warm-up",
    "state": "Nothing happened.",
    "questions": {"ready": {"type": "noul", "instructions": "Did something happen?"}},
}


@dataclass
class Service:
    """Answers SystemOne bodies. `state` is loading, warming, ready or failed; only ready answers."""

    options: dict[str, Any]  # engine arguments
    limits: Limits
    name: str  # what /v1/models lists
    state: str = "loading"
    detail: str = ""
    in_flight: int = 0
    engine: Any = None
    encoder: Any = None
    # One thread: fast tokenizers must not be shared by threads, and encoding takes a fraction of the model's time.
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "clef-encode"))

    async def start(self) -> None:
        """Load, check, warm up. Any failure ends in state failed with its reason, and is raised."""
        try:
            await self._start()
        except BaseException as error:
            self.state, self.detail = "failed", str(error)
            raise

    async def _start(self) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.logger import init_logger
        from vllm.v1.engine.async_llm import AsyncLLM

        release = Release.open(self.options["model"])
        checks.check_marker(release)
        arguments = AsyncEngineArgs(**compat.engine_arguments(AsyncEngineArgs, self.options))
        # Building the engine blocks for minutes on large models; the port must answer /health meanwhile.
        self.engine = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments)
        config = self.engine.vllm_config.model_config
        checks.check_architecture(config.architectures)
        self.encoder = await asyncio.to_thread(Encoder, release.path, config.max_model_len)
        self.state = "warming"
        await self._answer_checked(WARM_UP)
        found: list[Logits] = []
        if release.probe:
            for record in read_probe(release.probe).records:
                prepared = await self._encode(record)
                _, logits = await self._infer(prepared)
                found.append(by_question(prepared, logits))
        init_logger("vllm.clef_vllm").info(run_probe(release.probe, lambda _: found))
        self.state = "ready"

    @property
    def healthy(self) -> bool:
        return self.state == "ready" and not self.engine.errored

    async def answer(self, body: Any) -> dict[str, Any]:
        """A response body. RequestError for the client's faults, EngineError for ours."""
        check_request(body, self.limits)
        wanted = body.get("return") or []
        if not isinstance(wanted, list) or set(map(str, wanted)) - {"logits"}:
            raise RequestError(f'return must be a list that holds nothing but "logits", got {wanted!r}')
        self.in_flight += 1
        try:
            return await self._answer_checked(body, with_logits="logits" in wanted)
        finally:
            self.in_flight -= 1

    async def _answer_checked(self, body: dict[str, Any], with_logits: bool = False) -> dict[str, Any]:
        prepared = await self._encode(body)
        length, logits = await self._infer(prepared)
        response = {
            "model": body["model"],
            "answers": self.encoder.answers(body, prepared, logits),
            "usage": {"input_tokens": length, "output_tokens": 0},
        }
        if with_logits:
            response["logits"] = by_question(prepared, logits)
        return response

    async def _encode(self, body: dict[str, Any]) -> Prepared:
        def encode() -> Prepared:
            images = [decode_image(number, value) for number, value in enumerate(body.get("images") or [])]
            prepared: Prepared = self.encoder.encode({**body, "images": images})
            return prepared

        return await asyncio.get_running_loop().run_in_executor(self.worker, encode)

    async def _infer(self, prepared: Prepared) -> tuple[int, torch.Tensor]:
        """Prompt length after image expansion and logits [N]. A cancelled caller cancels the request in the engine."""
        params = pooling_params(prepared)
        # LLM.encode does this for the offline class; AsyncLLM leaves it to the caller. It is what keeps the prefix
        # cache from hiding prompt tokens from the head.
        params.verify(self.engine.vllm_config.model_config)
        prompt = compat.token_prompt(prepared.token_ids, prepared.images)
        result = None
        try:
            async for output in self.engine.encode(prompt, params, f"clef-{uuid.uuid4().hex}"):
                result = output
        except Exception as error:
            raise EngineError(f"the engine failed: {error}") from error
        if result is None:
            raise EngineError("the engine returned nothing")
        return len(result.prompt_token_ids), logits_of(prepared, result)

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.shutdown()
        self.worker.shutdown(wait=False, cancel_futures=True)
