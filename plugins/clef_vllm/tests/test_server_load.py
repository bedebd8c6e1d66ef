"""Overload, slowness, clients that leave, start-up and death, over a stand-in for the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import GOOD, FakeBackend, fake_service

pytest.importorskip("fastapi")
import httpx

from clef_vllm.release import ReleaseError
from clef_vllm.server.app import make_app
from clef_vllm.server.service import Service

HANG = {**GOOD, "state": "hang"}


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """The app in this event loop, its lifespan run, ready."""
    app = make_app(service, lambda: None)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with app.router.lifespan_context(app), client:
        await until(lambda: service.state in ("ready", "failed"))
        yield client


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)


def run(nano: Path, test: Callable[[FakeBackend], Any]) -> None:
    """Make the backend inside the loop that its events belong to."""

    async def main() -> None:
        await test(FakeBackend(nano))

    asyncio.run(main())


def test_what_does_not_fit_in_the_queue_is_turned_away_and_the_rest_is_answered(nano: Path) -> None:
    async def test(backend: FakeBackend) -> None:
        service = fake_service(backend, concurrent=2, queue=3)
        async with serving(service) as client:
            backend.started = 0
            tasks = [asyncio.create_task(client.post("/v1/systemone", json=HANG)) for _ in range(5)]
            await until(lambda: service.admission.accepted == 5 and backend.started == 2)
            page = (await client.get("/metrics")).text
            assert "clef_in_flight 5.0" in page
            assert "clef_queued 3.0" in page
            refused = await client.post("/v1/systemone", json=GOOD)
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "api_error")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert (await client.get("/health")).status_code == 200
            backend.go_on.set()
            assert [response.status_code for response in await asyncio.gather(*tasks)] == [200] * 5
            assert (service.admission.accepted, service.admission.waiting, service.admission.working) == (0, 0, 0)
            assert 'clef_records_total{outcome="overloaded"} 1.0' in (await client.get("/metrics")).text

    run(nano, test)


def test_a_batch_longer_than_the_queue_waits_for_its_turn(nano: Path) -> None:
    async def test(backend: FakeBackend) -> None:
        async with serving(fake_service(backend, concurrent=2, queue=0)) as client:
            answered = await client.post(
                "/v1/systemone", json={"requests": [{**GOOD, "model": str(n)} for n in range(20)]}
            )
            assert [body["model"] for body in answered.json()["responses"]] == [str(n) for n in range(20)]

    run(nano, test)


def test_what_takes_too_long_is_cancelled_and_told_so(nano: Path) -> None:
    async def test(backend: FakeBackend) -> None:
        service = fake_service(backend, timeout_s=5)
        async with serving(service) as client:
            service.timeout_s = 0.05
            late = await client.post("/v1/systemone", json=HANG)
            assert (late.status_code, late.json()["error"]["message"]) == (503, "no answer within 0.05 s")
            assert "retry-after" in late.headers
            assert (backend.cancelled, service.admission.working) == (1, 0)

    run(nano, test)


def test_a_client_that_leaves_takes_its_request_out_of_the_engine(nano: Path) -> None:
    async def test(backend: FakeBackend) -> None:
        service = fake_service(backend)
        app = make_app(service, lambda: None)
        leave = asyncio.Event()
        body = httpx.Request("POST", "http://test/", json=HANG).content

        async def receive(sent: list[bool] = []) -> dict[str, Any]:  # noqa: B006
            if not sent:
                sent.append(True)
                return {"type": "http.request", "body": body, "more_body": False}
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            return None

        scope = {"type": "http", "method": "POST", "path": "/v1/systemone", "query_string": b"", "http_version": "1.1",
                 "headers": [(b"content-type", b"application/json")]}  # fmt: skip
        async with serving(service):
            backend.started = 0
            call = asyncio.create_task(app(scope, receive, send))
            await until(lambda: backend.started == 1)
            leave.set()
            await call
            await until(lambda: backend.cancelled == 1)
            assert (service.admission.accepted, service.admission.working) == (0, 0)
            assert b'clef_records_total{outcome="cancelled"} 1.0' in service.metrics.page()

    run(nano, test)


def test_a_client_that_leaves_during_the_upload_is_no_fault_of_the_server(
    nano: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over a real connection: uvicorn tells of it in another way than a client that waits for its answer."""
    uvicorn = pytest.importorskip("uvicorn")

    async def test(backend: FakeBackend) -> None:
        service = fake_service(backend)
        config = uvicorn.Config(make_app(service, lambda: None), port=0, log_level="warning")
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        await until(lambda: server.started and service.state == "ready")
        port = server.servers[0].sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/systemone HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{")
        await until(lambda: service.admission.accepted == 1)
        writer.close()
        await until(lambda: service.admission.accepted == 0)
        await until(lambda: b'clef_http_responses_total{route="/v1/systemone"' in service.metrics.page())
        server.should_exit = True
        await running
        page = service.metrics.page()
        assert b'clef_http_responses_total{route="/v1/systemone",status="499"} 1.0' in page
        assert b'clef_records_total{outcome="cancelled"} 1.0' in page
        assert b'outcome="internal"' not in page

    run(nano, test)
    assert "a fault of the server" not in caplog.text


def test_when_the_engine_dies_those_accepted_get_503_and_so_does_health(nano: Path) -> None:
    async def test(backend: FakeBackend) -> None:
        service = fake_service(backend, concurrent=2, queue=8)
        async with serving(service) as client:
            backend.started = 0
            tasks = [asyncio.create_task(client.post("/v1/systemone", json=HANG)) for _ in range(6)]
            await until(lambda: backend.started == 2)
            backend.dead = True
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "dead")
            for response in await asyncio.gather(*tasks):
                assert (response.status_code, response.json()["error"]["type"]) == (503, "api_error")
                assert "the engine has died" in response.json()["error"]["message"]
            assert (await client.post("/v1/systemone", json=GOOD)).status_code == 503
            assert service.failure is not None

    run(nano, test)


def test_health_tells_what_start_up_is_doing(nano: Path) -> None:
    async def test(backend: FakeBackend) -> None:
        service = fake_service(backend)
        service.state, service.detail = "warming", "inference 2 of 10"
        app = make_app(service, lambda: None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            health, answer = await client.get("/health"), await client.post("/v1/systemone", json=GOOD)
        assert (health.status_code, health.json()["status"]) == (503, "warming")
        assert health.json()["detail"] == "inference 2 of 10"
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "not ready: warming" in answer.json()["error"]["message"]

    run(nano, test)


@pytest.mark.parametrize(("fault", "words"), [(ReleaseError("no head"), "no head"), (None, "not ready after 0.01 s")])
def test_a_start_that_fails_or_hangs_ends_with_its_reason(nano: Path, fault: Exception | None, words: str) -> None:
    async def test(backend: FakeBackend) -> None:
        let_go = asyncio.get_running_loop().create_future()
        service = fake_service(backend, start_timeout_s=0.01 if fault is None else 60)

        def load(_: Any) -> Any:
            if fault is not None:
                raise fault
            return asyncio.run_coroutine_threadsafe(asyncio.wait_for(let_go, 60), let_go.get_loop()).result()

        service.load = load
        async with serving(service) as client:
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "failed")
            assert words in health.json()["detail"]
        let_go.set_result(None)

    run(nano, test)
