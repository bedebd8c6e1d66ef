"""The HTTP surface: three routes and one error shape."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from clef_vllm.engine import EngineError
from clef_vllm.requests import RequestError
from clef_vllm.server.service import Service

MAX_BODY = 13 * 2**20


def error(status: int, kind: str, message: str, retry_after: int | None = None) -> JSONResponse:
    headers = {"Retry-After": str(retry_after)} if retry_after else None
    return JSONResponse({"error": {"type": kind, "message": message}}, status_code=status, headers=headers)


def make_app(service: Service, on_failure: Callable[[], None]) -> FastAPI:
    """Routes over a service that starts in the background; `on_failure` is called if it cannot start."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        def done(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and task.exception() is not None:
                on_failure()

        starting = asyncio.create_task(service.start())
        starting.add_done_callback(done)
        yield
        starting.cancel()
        service.stop()

    app = FastAPI(title="clef-systemone", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, raised: HTTPException) -> Response:
        return error(raised.status_code, "invalid_request_error", str(raised.detail))

    @app.get("/health")
    async def health() -> Response:
        alive = service.healthy
        status = "engine dead" if service.state == "ready" and not alive else service.state
        body = {
            "status": status,
            "in_flight": service.in_flight,
            **({"detail": service.detail} if service.detail else {}),
        }
        return JSONResponse(body, status_code=200 if alive else 503)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [{"id": service.name, "object": "model"}]})

    @app.post("/v1/systemone")
    async def systemone(request: Request) -> Response:
        body = await read_body(request)
        if body is None:
            return error(413, "invalid_request_error", f"the body is larger than {MAX_BODY} bytes")
        try:
            parsed = json.loads(body.decode("utf-8"), parse_constant=refuse_constant)
        except (UnicodeDecodeError, ValueError, RecursionError) as raised:
            return error(400, "invalid_request_error", f"the body is not valid JSON in UTF-8: {raised}")
        if not service.healthy:
            reason = f"not ready: {service.state}" if service.state != "ready" else "the engine is dead"
            return error(503, "api_error", reason, retry_after=5)
        try:
            return JSONResponse(await unless_disconnected(request, service.answer(parsed)))
        except RequestError as raised:
            return error(400, "invalid_request_error", str(raised))
        except EngineError as raised:
            return error(500 if service.healthy else 503, "api_error", str(raised))

    return app


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


async def read_body(request: Request) -> bytes | None:
    """The body, or None as soon as it grows too large, whatever the length header says."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


async def unless_disconnected(request: Request, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Wait for the answer; a client that leaves cancels it, which also takes the request out of the engine."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, leaving = asyncio.ensure_future(answer), asyncio.create_task(disconnected())
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            raise EngineError("the client left")
        return work.result()
    finally:
        leaving.cancel()
        work.cancel()
