"""The server against the engine it is built on, and a soak test. Runs in the serving environment, on any device.

    .venv-serving/bin/python benchmarks/server.py --model nano-release              # encoding, throughput, latency
    .venv-serving/bin/python benchmarks/server.py --model nano-release --minutes 10 # soak

The offline engine and the server (with an engine of its own) stay loaded side by side and take turns, so that other
work on the machine touches both alike. Further flags go to both engines.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

ROUNDS, RECORDS, CLIENTS, ALONE = 5, 192, 64, 40
NOISE = 0.05  # between batches, in probability
KV_CACHE_GIB = 1.0  # of each engine: on a CPU, vLLM would take all that is free, twice
INTENTS = {f"intent_{i}": f"The customer asks about topic {i} of the bank" for i in range(77)}
MESSAGE = "My card number {n} has not arrived yet and I would like to know where it is, please help me. "


def record(number: int, words: int = 1) -> dict[str, Any]:
    """About 350 tokens of nano's tokenizer; no two alike."""
    return {
        "model": f"m{number}",
        "state": {"message": MESSAGE.format(n=number) * words, "n": number},
        "questions": {
            "team": {"type": "choice", "criteria": dict(list(INTENTS.items())[number % 7 : number % 7 + 5])},
            "urgent": {"type": "noul", "instructions": "Is it urgent?"},
            "anger": {"type": "score", "criteria": ["calm", "annoyed", "angry"]},
        },
    }


def encoding(model: str) -> None:
    from clef_vllm.requests import Encoder

    encoder = Encoder(model, 16384)
    given = [{**record(n), "questions": {"intent": {"type": "choice", "criteria": INTENTS}}} for n in range(200)]
    expected = [encoder.code.encode_record(encoder.tokenizer, one) for one in given]
    assert [encoder.encode(one).token_ids for one in given] == [list(one.input_ids) for one in expected]
    slow, fast = [], []
    for _ in range(ROUNDS):
        slow.append(seconds(lambda: [encoder.code.encode_record(encoder.tokenizer, one) for one in given]))
        fast.append(seconds(lambda: [encoder.encode(one) for one in given]))
    ratio = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
    print(f"encoding a 77-option schema again: {ratio:.1f}x the release's encode_record, token-identical", flush=True)


def seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def server(model: str, flags: list[str]) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "clef_vllm.server.cli", "--model", model, "--port", str(port)]
    command += ["--kv-cache-gib", str(KV_CACHE_GIB), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None, "the server ended; run it alone to see why"
            try:
                urllib.request.urlopen(f"{url}/health", timeout=30)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        yield url, process
    finally:
        process.terminate()
        process.wait(180)


async def ask(session: aiohttp.ClientSession, body: Any) -> tuple[int, Any, str]:
    async with session.post("/v1/systemone", json=body) as response:
        return response.status, await response.json(), response.headers.get("server-timing", "")


async def all_at_once(url: str, bodies: list[Any], clients: int) -> None:
    turn = asyncio.Semaphore(clients)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=clients)) as session:

        async def one(body: Any) -> None:
            async with turn:
                status, answer, _ = await ask(session, body)
                assert status == 200, answer
                assert answer["model"] == body["model"]

        await asyncio.gather(*map(one, bodies))


async def alone(url: str, bodies: list[Any]) -> tuple[list[float], list[float]]:
    """Seconds of each request, and of them those in the engine."""
    whole, engine = [], []
    async with aiohttp.ClientSession(url) as session:
        for body in bodies:
            start = time.perf_counter()
            _, _, timing = await ask(session, body)
            whole.append(time.perf_counter() - start)
            engine.append(float(timing.split("engine;dur=")[1].split(",")[0]) / 1000)
    return whole, engine


def speed(model: str, flags: list[str]) -> None:
    from clef_vllm import ClefVLLM

    records = [record(n) for n in range(RECORDS)]
    options = {"enforce_eager": True} if "--enforce-eager" in flags else {}
    rates, whole, engine, offline = [], [], [], []
    with ClefVLLM(model, kv_cache_gib=KV_CACHE_GIB, **options) as clef, server(model, flags) as (url, _):
        clef.probabilities(records)
        asyncio.run(all_at_once(url, records, CLIENTS))
        for _ in range(ROUNDS):
            here = seconds(lambda: clef.probabilities(records))
            there = seconds(lambda: asyncio.run(all_at_once(url, records, CLIENTS)))
            rates.append(here / there)
            print(f"offline {RECORDS / here:.1f} records/s, {CLIENTS} clients {RECORDS / there:.1f}", flush=True)
            some = records[:ALONE]
            offline += [seconds(lambda one=one: clef.probabilities([one])) for one in some]
            times = asyncio.run(alone(url, some))
            whole += times[0]
            engine += times[1]
    print(f"throughput of {CLIENTS} clients over the offline engine's: {statistics.median(rates):.3f}")
    p50 = statistics.median(whole)
    print(f"one client: p50 {p50 * 1000:.1f} ms, {p50 / statistics.median(engine):.3f} of the time in the engine, "
          f"{p50 / statistics.median(offline):.3f} of the offline class")  # fmt: skip


class Soak:
    """64 clients with every kind of request; `wrong` collects whatever should not have happened."""

    def __init__(self, url: str, process_id: int, minutes: float) -> None:
        self.url, self.process_id, self.end = url, process_id, time.monotonic() + 60 * minutes
        self.records = [record(n, 1 + n % 5) for n in range(200)]
        self.expected: list[Any] = []
        self.done: dict[str, int] = {}
        self.wrong: list[str] = []
        self.memory: list[tuple[float, float]] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(limit=0)) as session:
            self.expected = [(await ask(session, one))[1] for one in self.records]
            watching = asyncio.create_task(self.watch())
            await asyncio.gather(*(self.client(session, random.Random(n)) for n in range(CLIENTS)))
            watching.cancel()
            for _ in range(200):
                async with session.get("/metrics") as response:
                    page = await response.text()
                if "clef_in_flight 0.0" in page:
                    break
            self.check("clef_in_flight 0.0" in page and "clef_working 0.0" in page, "the gauges are not back to 0")

    def check(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(what)

    async def watch(self) -> None:
        start = time.monotonic()
        while True:
            self.memory.append((time.monotonic() - start, resident_mib(self.process_id)))
            await asyncio.sleep(2)

    async def client(self, session: aiohttp.ClientSession, draw: random.Random) -> None:
        kinds = [self.valid, self.batch, self.invalid, self.huge, self.too_large, self.leaves]
        while time.monotonic() < self.end:
            kind = draw.choices(kinds, [70, 5, 12, 2, 1, 10])[0]
            try:
                await kind(session, draw)
            except (aiohttp.ClientError, OSError) as error:
                self.wrong.append(f"{kind.__name__}: {error!r}")
            self.done[kind.__name__] = self.done.get(kind.__name__, 0) + 1

    def same(self, number: int, body: Any) -> bool:
        """Whether an answer is this record's; batching moves probabilities by bfloat16's noise, lengths never."""
        expected = self.expected[number]
        if body["usage"] != expected["usage"] or list(body["answers"]) != list(expected["answers"]):
            return False
        for name, answer in body["answers"].items():
            found, wanted = values(answer), values(expected["answers"][name])
            if list(found) != list(wanted) or any(abs(found[key] - wanted[key]) > NOISE for key in wanted):
                return False
        return True

    async def valid(self, session: aiohttp.ClientSession, draw: random.Random) -> None:
        number, name = draw.randrange(len(self.records)), f"{draw.random()}"
        status, body, _ = await ask(session, {**self.records[number], "model": name})
        right = status == 200 and body["model"] == name and self.same(number, body)
        self.check(right, f"valid: {status} {json.dumps(body)[:300]}")

    async def batch(self, session: aiohttp.ClientSession, draw: random.Random) -> None:
        numbers = draw.sample(range(len(self.records)), 6)
        status, body, _ = await ask(session, {"requests": [*(self.records[n] for n in numbers), {}]})
        right = status == 200 and "error" in body["responses"][-1] and all(
            self.same(n, one) for n, one in zip(numbers, body["responses"], strict=False))  # fmt: skip
        self.check(right, f"batch: {status}")

    async def invalid(self, session: aiohttp.ClientSession, draw: random.Random) -> None:
        good = self.records[0]
        bad = draw.choice([
            [], {"model": "m"}, {**good, "questions": {"q": {"type": "?"}}}, {**good, "images": ["http://x/y.png"]},
            {**good, "questions": {"a\nb": {"type": "noul"}}}, {**good, "images": ["data:image/png;base64,AAAA"]},
        ])  # fmt: skip
        status, body, _ = await ask(session, bad)
        self.check(status == 400 and body["error"]["type"] == "invalid_request_error", f"invalid: {status}")

    async def huge(self, session: aiohttp.ClientSession, draw: random.Random) -> None:
        status, body, _ = await ask(session, {**self.records[0], "state": "word " * draw.randint(10_000, 200_000)})
        self.check(status == 200, f"huge: {status} {json.dumps(body)[:300]}")

    async def too_large(self, session: aiohttp.ClientSession, _: random.Random) -> None:
        status, _, _ = await ask(session, {**self.records[0], "state": "x" * (14 * 2**20)})
        self.check(status == 413, f"too large: {status}")

    async def leaves(self, session: aiohttp.ClientSession, draw: random.Random) -> None:
        call = asyncio.create_task(ask(session, self.records[draw.randrange(len(self.records))]))
        await asyncio.wait({call}, timeout=draw.random())
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


def values(answer: Any) -> dict[str, float]:
    return answer.get("probabilities") or {"true": answer["noul"]}


def resident_mib(process_id: int) -> float:
    """The server alone; engines keep a fixed memory of their own."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(model: str, flags: list[str], minutes: float) -> None:
    with server(model, flags) as (url, process):
        test = Soak(url, process.pid, minutes)
        asyncio.run(test.run())
    after = [mib for at, mib in test.memory if at > 60] or [mib for _, mib in test.memory]
    fifth = max(1, len(after) // 5)
    first, last = statistics.median(after[:fifth]), statistics.median(after[-fifth:])
    print(f"{minutes:g} minutes, {CLIENTS} clients: {test.done}; {len(test.wrong)} wrong")
    print(f"resident memory of the server after the first minute {first:.0f} MiB, at the end {last:.0f} MiB")
    for what in test.wrong[:20]:
        print(what)
    sys.exit(1 if test.wrong else 0)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="release folder, for example from `clefquant nano DIR`")
    p.add_argument("--minutes", type=float, help="soak for so long instead of measuring")
    args, flags = p.parse_known_args()
    if args.minutes:
        soak(args.model, flags, args.minutes)
        return
    encoding(args.model)
    speed(args.model, flags)


if __name__ == "__main__":
    main()
