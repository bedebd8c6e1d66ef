"""The server: its HTTP surface over a stand-in service, and once for real as the console script."""

import asyncio
import base64
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from nano import load_reference, make_image, records

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from clef_vllm.engine import EngineError
from clef_vllm.requests import Limits, RequestError, check_request
from clef_vllm.server.app import MAX_BODY, make_app
from clef_vllm.server.images import decode_image
from clef_vllm.server.service import Service

GOOD = {"model": "m", "state": "s", "questions": {"q": {"type": "noul", "instructions": "So?"}}}


class StandIn(Service):
    """A service without an engine: real validation, a fixed answer, failures on request."""

    healthy = True  # type: ignore[assignment]

    async def start(self) -> None:
        self.state = "ready"

    async def answer(self, body: Any) -> dict[str, Any]:
        check_request(body, self.limits)
        if body["model"] == "break":
            raise EngineError("the engine returned logits that are not finite")
        return {"model": body["model"]}


@pytest.fixture
def service() -> StandIn:
    return StandIn({}, Limits(), "nano")


@pytest.fixture
def client(service: StandIn) -> Iterator[TestClient]:
    with TestClient(make_app(service, on_failure=lambda: None), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"[]", 400, "must be an object"), (b"null", 400, "must be an object"), (b'"x"', 400, "must be an object"),
        (b"{", 400, "not valid JSON"), (b"\xff\xfe", 400, "not valid JSON in UTF-8"), (b"", 400, "not valid JSON"),
        (b'{"model": NaN}', 400, "NaN is not JSON"), (b"[" * 100000, 400, "not valid JSON"),
        (b"x" * (MAX_BODY + 1), 413, "larger than"),
        (json.dumps({**GOOD, "questions": {"team": {"type": "?"}}}).encode(), 400, "team: type must be"),
        (json.dumps({**GOOD, "model": "break"}).encode(), 500, "not finite"),
    ],
)  # fmt: skip
def test_faults(client: TestClient, content: bytes, status: int, words: str) -> None:
    response = client.post("/v1/systemone", content=content)
    assert response.status_code == status
    fault = response.json()["error"]
    assert set(fault) == {"type", "message"}
    assert fault["type"] == ("api_error" if status == 500 else "invalid_request_error")
    assert words in fault["message"]


def test_routes(client: TestClient, service: StandIn) -> None:
    assert client.post("/v1/systemone", json=GOOD).json() == {"model": "m"}
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models").json()["data"] == [{"id": "nano", "object": "model"}]
    for method, path, status in (("GET", "/v1/systemone", 405), ("GET", "/nowhere", 404)):
        response = client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"
    service.state, StandIn.healthy = "warming", False
    try:
        health, answer = client.get("/health"), client.post("/v1/systemone", json=GOOD)
        assert (health.status_code, health.json()["status"]) == (503, "warming")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    finally:
        StandIn.healthy = True


def encode(image: Any, kind: str) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format=kind)
    return base64.b64encode(buffer.getvalue()).decode()


def test_images_on_the_wire() -> None:
    image = make_image(1, 40, 30)
    png = encode(image, "PNG")
    for value in (f"data:image/png;base64,{png}", f"DATA:IMAGE/PNG;base64,{png}",
                  {"content_type": "image/png", "base64": png}):  # fmt: skip
        decoded = decode_image(0, value)
        assert (decoded.mode, decoded.size, decoded.tobytes()) == ("RGB", (40, 30), image.tobytes())
    assert (
        decode_image(0, {"content_type": "image/jpeg", "base64": encode(image.convert("CMYK"), "JPEG")}).mode == "RGB"
    )
    assert decode_image(0, {"content_type": "image/png", "base64": encode(image.convert("P"), "PNG")}).mode == "RGB"
    bomb = encode(make_image(1, 5000, 4000), "PNG")
    for value, words in (
        ("https://example.com/a.png", "remote addresses are not fetched"), (7, "expected a data URL"),
        (f"data:image/gif;base64,{encode(image, 'GIF')}", "content type 'image/gif'"),
        ("data:image/png;base64,@@@", "not valid base64"), ("data:image/png;base64,AAAA", "cannot be decoded"),
        (f"data:image/png;base64,{png[:200]}", "cannot be decoded"),
        (f"data:image/jpeg;base64,{png}", "cannot be decoded as image/jpeg"),
        (f"data:image/png;base64,{bomb}", "5000 x 4000 pixels"), ("data:image/png;base64," + "A" * 6_000_000, "larger"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=words):
            decode_image(0, value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def server(nano: Path, tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The console script's code in a process of its own, on a free port."""
    port, log = free_port(), (tmp_path / "server.log").open("wb")
    command = [sys.executable, "-m", "clef_vllm.server.cli", "--model", str(nano), "--port", str(port),
               "--max-model-len", "4096", "--enforce-eager"]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=log, stderr=log, env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        # uvicorn finishes its work and then ends by the signal it was sent, as Unix programs do.
        assert process.wait(60) in (0, -signal.SIGTERM), (tmp_path / "server.log").read_text()[-3000:]
        log.close()


@pytest.mark.engine
def test_console_script_from_start_to_stop(server: Any, nano: Path) -> None:
    """Health while loading, then 64 clients at once whose answers must be their own, faults, images, raw logits."""
    pytest.importorskip("vllm")
    url, process = server
    states = set()
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        try:
            response = httpx.get(f"{url}/health", timeout=20)
        except httpx.ConnectError:
            time.sleep(0.5)
            continue
        states.add((response.status_code, response.json()["status"]))
        if response.status_code == 200:
            break
        assert httpx.post(f"{url}/v1/systemone", json=GOOD, timeout=20).status_code == 503
        time.sleep(0.5)
    assert (503, "loading") in states
    assert (200, "ready") in states

    code = load_reference()
    model, processor = code.load_release_model(nano, device="cpu")
    expected = [code.systemone(model, processor, {"model": f"m{n}", **record}) for n, record in enumerate(records())]
    image = {"content_type": "image/png", "base64": encode(make_image(3, 96, 64), "PNG")}

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            return await asyncio.gather(*(
                client.post("/v1/systemone", json={"model": f"m{i % 6}", "return": ["logits"], **records()[i % 6]})
                for i in range(64)
            ))  # fmt: skip

    for number, response in enumerate(asyncio.run(ask())):
        assert response.status_code == 200, response.text
        body, wanted = response.json(), expected[number % 6]
        logits = body.pop("logits")
        assert {q: set(o) for q, o in logits.items()} == {
            e.question_id: set(e.option_ids)
            for e in code.encode_record(processor.tokenizer, records()[number % 6]).questions
        }
        assert (body["model"], body["usage"], list(body["answers"])) == (
            wanted["model"], wanted["usage"], list(wanted["answers"]))  # fmt: skip
        for name, answer in wanted["answers"].items():
            for option, value in answer.get("probabilities", {}).items():
                assert abs(value - body["answers"][name]["probabilities"][option]) <= 0.02
    with_image = httpx.post(f"{url}/v1/systemone", json={**GOOD, "images": [image]}, timeout=60)
    assert with_image.status_code == 200, with_image.text
    assert with_image.json()["usage"]["input_tokens"] > 24
    too_long = {**GOOD, "questions": {f"q{i}": {"type": "noul", "instructions": "word " * 600} for i in range(20)}}
    refused = httpx.post(f"{url}/v1/systemone", json=too_long, timeout=60)
    assert refused.status_code == 400
    assert "schema requires" in refused.json()["error"]["message"]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/systemone", json={**GOOD, "state": "long " * 3000}, timeout=0.02)
    time.sleep(3)
    health = httpx.get(f"{url}/health", timeout=20)
    assert (health.status_code, health.json()["in_flight"]) == (200, 0)


@pytest.mark.engine
def test_a_failed_start_ends_with_1_and_its_reason(nano: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    folder = tmp_path / "newer"
    shutil.copytree(nano, folder)
    config = json.loads((folder / "joint_head_config.json").read_text())
    (folder / "joint_head_config.json").write_text(json.dumps({**config, "requires_clef_vllm": "9.0"}))
    command = [sys.executable, "-m", "clef_vllm.server.cli", "--port", str(free_port()), "--model"]
    ended = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "needs clef-vllm 9.0 or newer, this is clef-vllm 0.1.0" in ended.stderr
    ended = subprocess.run([*command, str(tmp_path / "nowhere")], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, "is not a folder" in ended.stderr) == (2, True)
