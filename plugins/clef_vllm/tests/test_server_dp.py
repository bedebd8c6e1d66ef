"""`--dp 2`: two engines behind one port."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from nano import records
from serving import running

pytest.importorskip("vllm")
pytest.importorskip("fastapi")
pytestmark = [pytest.mark.engine, pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two engines, two cores")]

SERVED = re.compile(r'^vllm:request_success_total\{engine="(\d)",finished_reason="stop".*\} ([\d.]+)$', re.MULTILINE)

TOLERANCE = 0.02  # between batches, in bfloat16


def probabilities(response: dict[str, Any]) -> dict[tuple[str, str], float]:
    """By question and option."""
    return {
        (question, option): p
        for question, answer in response["answers"].items()
        for option, p in (answer.get("probabilities") or {"true": answer["noul"]}).items()
    }


def test_two_engines_share_the_requests(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    asked = [records()[n] for n in (0, 1, 3, 5)]  # ids as the hosted service allows them
    bodies = [{"model": f"m{n}", **asked[n % len(asked)]} for n in range(32)]
    with (
        running(nano, tmp_path, "--max-model-len", "2048", "--kv-cache-gib", "0.5", "--dp", "2") as server,
        httpx.Client(base_url=server.url, timeout=300) as client,
    ):
        server.wait_until_ready()
        before = dict(SERVED.findall(client.get("/metrics").text))
        with ThreadPoolExecutor(8) as clients:
            together = list(clients.map(lambda body: client.post("/v1/systemone", json=body).json(), bodies))
        alone = [client.post("/v1/systemone", json=body).json() for body in bodies[: len(asked)]]
        after = dict(SERVED.findall(client.get("/metrics").text))
    assert [answer["model"] for answer in together] == [body["model"] for body in bodies]
    for number, answer in enumerate(together):
        expected = alone[number % len(alone)]
        assert answer["usage"] == expected["usage"]
        found, wanted = (probabilities(one) for one in (answer, expected))
        assert found == {option: pytest.approx(p, abs=TOLERANCE) for option, p in wanted.items()}
    served = {engine: float(after[engine]) - float(before[engine]) for engine in ("0", "1")}
    record_property("answered by each engine", list(served.values()))
    assert min(served.values()) >= len(bodies) / 4
