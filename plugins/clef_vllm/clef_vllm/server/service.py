"""One engine behind the server: start, warm-up, answers, death. No HTTP in here."""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from clef_vllm.server.admission import Admission
from clef_vllm.server.faults import EngineDied, Fault, fault_of
from clef_vllm.server.limits import ServerLimits
from clef_vllm.server.metrics import Metrics
from clef_vllm.server.tasks import first, in_daemon_thread
from clef_vllm.server.trace import Trace
from clef_vllm.server.warmup import warm_up_records

logger = logging.getLogger("vllm.clef_vllm.server")
WATCH_S = 0.25
LINGER_S = 2.0  # after the engine's death: clients and load balancers get 503 before the port closes
STARTING_RETRY_S = 5
Progress = Callable[[str], None]


class Answer(NamedTuple):
    response: dict[str, Any]
    prepared: Any  # clef_vllm.requests.Prepared
    length: int  # tokens of the prompt, after image expansion
    logits: Any  # tensor [N] float32


class Service:
    """Answers SystemOne records. `state` is loading, warming, ready, failed or dead; only ready answers.

    load: builds the backend; runs in a thread of its own and reports what it is doing.
    """

    def __init__(
        self, load: Callable[[Progress], Any], name: str, limits: ServerLimits, admission: Admission,
        timeout_s: float = 120.0, start_timeout_s: float = 3600.0,
    ) -> None:  # fmt: skip
        self.load, self.name, self.limits, self.admission = load, name, limits, admission
        self.timeout_s, self.start_timeout_s = timeout_s, start_timeout_s
        self.metrics = Metrics(admission)
        self.state, self.detail, self.since = "loading", "importing vLLM", time.monotonic()
        self.failure: BaseException | None = None
        self.backend: Any = None
        self.loading: threading.Thread | None = None
        self._died = asyncio.Event()

    async def run(self) -> None:
        """Load, check, warm up, then watch the engine until it dies. Ends in state failed or dead, with the reason."""
        try:
            await asyncio.wait_for(self._start(), self.start_timeout_s)
        except asyncio.TimeoutError:
            self._fail("failed", TimeoutError(f"not ready after {self.start_timeout_s:g} s, while {self.detail}"))
            return
        except Exception as error:
            self._fail("failed", error)
            return
        while not self.backend.dead:
            await asyncio.sleep(WATCH_S)
        self._fail("dead", EngineDied())
        self._died.set()
        await asyncio.sleep(LINGER_S)

    async def _start(self) -> None:
        self.loading, loaded = in_daemon_thread(lambda: self.load(self._report))
        self.backend = await loaded
        self.metrics.watch_pieces(self.backend.encoders)
        self._enter("warming", "the first inference")
        records = warm_up_records(self.limits.record.images or 0, self.backend.max_length)
        for number, record in enumerate(records, 1):
            self.detail = f"inference {number} of {len(records)}"
            await self._answer(record, Trace.of(""))
        self.detail = "answering the release's probe"
        found = []
        for record in self.backend.probe.records if self.backend.probe else []:
            answer = await self._answer({"model": "probe", **record}, Trace.of(""))
            found.append(self.backend.logits(answer.prepared, answer.logits))
        logger.info(self.backend.check_probe(found))
        self._enter("ready", "")
        self.metrics.ready.set(1)

    def _enter(self, state: str, detail: str) -> None:
        self.state, self.detail, self.since = state, detail, time.monotonic()

    def _report(self, detail: str) -> None:
        self.detail = detail

    def _fail(self, state: str, error: BaseException) -> None:
        logger.error("%s: %s", state, error, exc_info=error)
        self.failure = error
        self.metrics.ready.set(0)
        self._enter(state, str(error))

    @property
    def status(self) -> str:
        """The state, but dead as soon as the engine is."""
        return "dead" if self.state == "ready" and self.backend.dead else self.state

    @property
    def seconds(self) -> float:
        """Since the state was entered."""
        return round(time.monotonic() - self.since, 1)

    def check_ready(self) -> None:
        """Raises Fault 503 with Retry-After unless requests are answered."""
        if self.status == "dead":
            raise fault_of(EngineDied())
        if self.state != "ready":
            raise Fault(503, "not_ready", f"not ready: {self.state} ({self.detail})", retry_after=STARTING_RETRY_S)

    async def answer(self, body: Any, trace: Trace) -> dict[str, Any]:
        """A response body. RequestError for the client's faults, EngineError and Fault 503 for ours."""
        with_logits = self.limits.check(body)
        own = Trace(trace.id)
        try:
            answer = await asyncio.wait_for(self._in_turn(body, own), self.timeout_s)
        except asyncio.TimeoutError as error:
            message = f"no answer within {self.timeout_s:g} s"
            raise Fault(503, "timeout", message, retry_after=self.admission.retry_after()) from error
        finally:
            for stage, seconds in own.stages.items():
                trace.add(stage, seconds)
                self.metrics.stages.labels(stage).observe(seconds)
        trace.truncated += answer.prepared.truncated
        self.metrics.count(answer.prepared, answer.length)
        if with_logits:
            answer.response["logits"] = self.backend.logits(answer.prepared, answer.logits)
        return answer.response

    async def _in_turn(self, body: dict[str, Any], trace: Trace) -> Answer:
        async with self.admission.slot(trace):
            return await self._answer(body, trace)

    async def _answer(self, body: dict[str, Any], trace: Trace) -> Answer:
        record = {name: body[name] for name in ("model", "state", "questions")}
        if body.get("images") or body.get("videos"):
            with trace.stage("decode"):
                record = await self.backend.decode(body)
        with trace.stage("encode"):
            prepared = await self.backend.encode(record)
        with trace.stage("engine"):
            inference = self.backend.infer(prepared, f"clef-{uuid.uuid4().hex}")
            length, logits = await first(inference, self._died, EngineDied())
        with trace.stage("format"):
            response = {
                "model": body["model"],
                "answers": self.backend.answers(record, prepared, logits),
                "usage": {"input_tokens": length, "output_tokens": 0},
            }
        return Answer(response, prepared, length, logits)

    async def stop(self) -> None:
        """End the engine. An engine that is still loading is left to the end of the process."""
        if self.backend is not None:
            await asyncio.to_thread(self.backend.close)
