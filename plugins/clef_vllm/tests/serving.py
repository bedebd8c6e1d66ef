"""A service without an engine for fast tests, and the console script in a process of its own for the others."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from clef_vllm.requests import Encoder, Prepared, by_question
from clef_vllm.server.admission import Admission
from clef_vllm.server.images import ImageDecoder
from clef_vllm.server.limits import ServerLimits
from clef_vllm.server.service import Service

GOOD: dict[str, Any] = {"model": "m", "state": "s", "questions": {"q": {"type": "noul", "instructions": "So?"}}}


class FakeBackend:
    """The release's encoder and formatter around logits that a test decides; nothing is computed.

    The record's state decides what the engine does: "hang" waits to be let go, "nan" fails, "bug" is a defect.
    """

    probe = None

    def __init__(self, nano: Path, max_length: int = 4096) -> None:
        self.encoders = [Encoder(nano, max_length)]
        self.max_length = max_length
        self.states: dict[tuple[int, ...], Any] = {}
        self.dead = False
        self.go_on = asyncio.Event()
        self.started = self.cancelled = 0

    def logits_for(self, prepared: Prepared) -> torch.Tensor:
        """Depends on the prompt; many of the values are equal, so that ties occur."""
        generator = torch.Generator().manual_seed(sum(prepared.token_ids))
        count = sum(len(options) for _, options in prepared.options)
        return torch.randint(-3, 3, (count,), generator=generator).float()

    async def decode(self, record: Any) -> dict[str, Any]:
        return ImageDecoder().media(record)

    async def encode(self, record: dict[str, Any]) -> Prepared:
        prepared = self.encoders[0].encode(record)
        self.states[tuple(prepared.token_ids)] = record["state"]
        return prepared

    async def infer(self, prepared: Prepared, _: str) -> tuple[int, torch.Tensor]:
        from clef_vllm.engine import EngineError

        state = self.states[tuple(prepared.token_ids)]
        self.started += 1
        try:
            if state == "hang":
                await self.go_on.wait()
            if state == "nan":
                raise EngineError("the engine returned logits that are not finite")
            if state == "bug":
                raise KeyError("a defect")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return len(prepared.token_ids), self.logits_for(prepared)

    def answers(self, *arguments: Any) -> dict[str, Any]:
        return self.encoders[0].answers(*arguments)

    def logits(self, prepared: Prepared, logits: torch.Tensor) -> Any:
        return by_question(prepared, logits)

    def check_probe(self, _: Any) -> str:
        return "no probe"

    def close(self) -> None:
        self.dead = True


def fake_service(backend: Any, limits: str = "", concurrent: int = 8, queue: int = 8, **options: Any) -> Service:
    rules = {name: options.pop(name) for name in ("hosted_rules", "strict") if name in options}
    parsed = ServerLimits.parse(limits, **rules)
    return Service(lambda _: backend, "nano", parsed, Admission(concurrent, queue), **options)


class Server:
    """`clef-systemone` as a process: its address, its log, and how it ended."""

    def __init__(self, model: Path, log: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url, self.log = f"http://127.0.0.1:{port}", log
        command = [sys.executable, "-m", "clef_vllm.server.cli", "--model", str(model), "--port", str(port),
                   "--enforce-eager", *flags]  # fmt: skip
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        self.started = time.monotonic()

    def wait_until_ready(self, timeout_s: float = 600) -> set[tuple[int, str]]:
        """Every (status, state) that /health gave until it was 200."""
        seen: set[tuple[int, str]] = set()
        while time.monotonic() - self.started < timeout_s:
            assert self.process.poll() is None, self.tail()
            try:
                response = httpx.get(f"{self.url}/health", timeout=20)
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            seen.add((response.status_code, response.json()["status"]))
            if response.status_code == 200:
                return seen
            time.sleep(0.2)
        raise AssertionError(f"not ready in time: {self.tail()}")

    def engine_processes(self) -> list[int]:
        """Process ids of the server's children that are engines."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
        return [pid for pid in children if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@contextmanager
def running(model: Path, folder: Path, *flags: str) -> Iterator[Server]:
    """A server that is gone afterwards, with its engine, whatever the test did."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    server = Server(model, folder / "server.log", *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            engines = server.engine_processes()
            server.process.terminate()
            try:
                server.process.wait(60)
            except subprocess.TimeoutExpired:
                for process_id in [server.process.pid, *engines]:
                    os.kill(process_id, signal.SIGKILL)
                server.process.wait(60)
