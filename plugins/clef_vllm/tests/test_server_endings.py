"""How the process ends: told to stop under load, its engine killed under load, never ready."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import GOOD, Server, running

pytest.importorskip("vllm")
pytest.importorskip("fastapi")
pytestmark = pytest.mark.engine

BODY = {**GOOD, "state": "long " * 400}


def under_load(server: Server, act: Callable[[], None], clients: int = 40) -> list[httpx.Response]:
    """What `clients` requests get when `act` happens while all of them are in the server."""

    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
            tasks = [asyncio.create_task(client.post("/v1/systemone", json=BODY)) for _ in range(clients)]
            while f"clef_in_flight {clients}.0" not in (await client.get("/metrics")).text:
                assert not all(task.done() for task in tasks)
            act()
            return await asyncio.gather(*tasks)

    return asyncio.run(main())


def test_a_server_told_to_stop_finishes_what_it_accepted(nano: Path, tmp_path: Path) -> None:
    with running(nano, tmp_path, "--max-model-len", "2048") as server:
        server.wait_until_ready()
        responses = under_load(server, lambda: server.process.send_signal(signal.SIGTERM))
        assert {response.status_code for response in responses} == {200}
        assert server.process.wait(120) == 0, server.tail()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")


def test_a_killed_engine_is_a_clean_503_for_everyone_and_exit_code_1(nano: Path, tmp_path: Path) -> None:
    with running(nano, tmp_path, "--max-model-len", "2048") as server:
        server.wait_until_ready()
        (engine,) = server.engine_processes()
        health: list[httpx.Response] = []

        def kill() -> None:
            os.kill(engine, signal.SIGKILL)

        responses = under_load(server, kill)
        health.append(httpx.get(f"{server.url}/health", timeout=20))
        assert 503 in {response.status_code for response in responses}
        for response in responses:
            assert response.status_code in (200, 503), response.text
            if response.status_code == 503:
                assert response.json()["error"] == {
                    "type": "api_error", "message": "the engine has died; the server is stopping"}  # fmt: skip
        assert [(found.status_code, found.json()["status"]) for found in health] == [(503, "dead")]
        assert server.process.wait(120) == 1, server.tail()
        assert "clef-systemone: the engine has died" in server.tail()


def ended(model: Path, folder: Path, *flags: str) -> tuple[int, str]:
    """Exit code and last output of a server that cannot start."""
    with running(model, folder, *flags) as server:
        return server.process.wait(300), server.tail()


def test_a_release_for_a_newer_plugin_ends_with_1_and_its_reason(nano: Path, tmp_path: Path) -> None:
    folder = tmp_path / "newer"
    shutil.copytree(nano, folder)
    config: dict[str, Any] = json.loads((folder / "joint_head_config.json").read_text())
    (folder / "joint_head_config.json").write_text(json.dumps({**config, "requires_clef_vllm": "9.0"}))
    code, output = ended(folder, tmp_path)
    assert (code, "needs clef-vllm 9.0 or newer, this is clef-vllm 0.1.0" in output) == (1, True)


def test_a_flag_that_nobody_knows_ends_with_2(nano: Path, tmp_path: Path) -> None:
    code, output = ended(nano, tmp_path, "--no-such-flag", "1")
    assert (code, "neither clef-systemone nor vLLM's engine knows it" in output) == (2, True)
