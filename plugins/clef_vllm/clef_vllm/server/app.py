"""The HTTP surface: routes over a service, one error shape, and what happens when a client leaves."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from clef_vllm import __version__
from clef_vllm.engine import EngineError
from clef_vllm.requests import RequestError
from clef_vllm.server import bodies, openapi
from clef_vllm.server.faults import Fault, fault_of
from clef_vllm.server.middleware import Tracing, trace_of
from clef_vllm.server.service import Service
from clef_vllm.server.tasks import first
from clef_vllm.server.trace import Trace


def make_app(service: Service, on_end: Callable[[], None], keys: Sequence[str] = ()) -> FastAPI:
    """Routes over a service that starts in the background. `on_end` is called when it failed to start or died.

    keys: bearer tokens, one of which every request under /v1 and /client must then show.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(service.run())
        running.add_done_callback(lambda task: None if task.cancelled() else on_end())
        yield
        running.cancel()
        await service.stop()

    app = FastAPI(title="clef-systemone", version=__version__, description=openapi.DESCRIPTION, lifespan=lifespan)
    app.add_middleware(Tracing, metrics=service.metrics)
    app.openapi = lambda: openapi.document(app)
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @app.exception_handler(Fault)
    async def fault(request: Request, raised: Fault) -> Response:
        return bodies.failure(raised, request.url.path)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, raised: HTTPException) -> Response:
        response = bodies.failure(Fault(raised.status_code, "invalid", str(raised.detail)), request.url.path)
        response.headers.update(raised.headers or {})
        return response

    @app.get("/health", **openapi.HEALTH)
    async def health() -> Response:
        try:
            service.check_ready()
        except Fault as fault:
            body = {"status": service.status, "detail": service.detail or fault.message}
            return JSONResponse({**body, "seconds": service.seconds}, status_code=503, headers=fault.headers)
        return JSONResponse({"status": "ready", "in_flight": service.admission.accepted, "seconds": service.seconds})

    @app.get("/metrics", **openapi.METRICS)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models", **openapi.MODELS)
    async def models(request: Request) -> Response:
        authorize(request, digests)
        return JSONResponse({"object": "list", "data": [{"id": service.name, "object": "model"}]})

    @app.post("/v1/systemone", **openapi.SYSTEMONE)
    async def systemone(request: Request) -> Response:
        return await respond(request, service, digests)

    @app.post("/client/v4/accounts/{account}/ai/run/{model:path}", **openapi.WORKERS_AI)
    async def workers_ai(request: Request) -> Response:
        return await respond(request, service, digests)

    return app


def authorize(request: Request, digests: Sequence[bytes]) -> None:
    """Fault 401 unless the request shows one of the keys, or there are none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    given = hashlib.sha256(key.strip().encode("utf-8", "surrogatepass")).digest()
    known = [hmac.compare_digest(given, digest) for digest in digests]
    if digests and (scheme.lower() != "bearer" or not any(known)):
        raise Fault(401, "unauthorized", "a bearer token is needed: Authorization: Bearer KEY", "authentication_error")


async def respond(request: Request, service: Service, digests: Sequence[bytes]) -> Response:
    """Answer one record, a batch, or lines of records; a client that leaves takes its records out of the engine."""
    trace, left = trace_of(request), asyncio.Event()
    try:
        authorize(request, digests)
        service.check_ready()
        with service.admission.accept():
            kind = bodies.content_type(request)
            raw = await bodies.read_body(request, service.limits.body_bytes)
            leaving = asyncio.create_task(wait_for_leaving(request, left))
            try:
                return await first(answer(request, kind, raw, service, trace), left, Fault(499, "", "the client left"))
            finally:
                leaving.cancel()
    except Fault as fault:
        if fault.outcome:
            service.metrics.records.labels(fault.outcome).inc()
        raise


async def answer(request: Request, kind: str, raw: bytes, service: Service, trace: Trace) -> Response:
    if kind in bodies.NDJSON_TYPES:
        return bodies.lines(await answer_all(bodies.parse_lines(raw), service, trace))
    body = bodies.parse(raw)
    if isinstance(body, dict) and "requests" in body and "questions" not in body:
        if not isinstance(body["requests"], list):
            raise Fault(400, "invalid", f"requests must be a list, got {type(body['requests']).__name__}")
        return JSONResponse({"responses": await answer_all(body["requests"], service, trace)})
    result = await settle(body, service, trace)
    if isinstance(result, Fault):
        return bodies.failure(result, request.url.path)
    workers_ai = request.url.path.startswith("/client/")
    return JSONResponse(bodies.envelope(result, []) if workers_ai else result)


async def answer_all(records: list[Any], service: Service, trace: Trace) -> list[dict[str, Any]]:
    """A response or an error for every record, in their order."""
    if not 0 < len(records) <= service.limits.batch:
        raise Fault(400, "invalid", f"{len(records)} records in a batch, 1 to {service.limits.batch} are allowed")
    results = await asyncio.gather(*(settle(record, service, trace) for record in records))
    return [result.body if isinstance(result, Fault) else result for result in results]


async def settle(record: Any, service: Service, trace: Trace) -> dict[str, Any] | Fault:
    """The response to one record or the fault that it met, counted by outcome."""
    outcome = "cancelled"
    try:
        result: dict[str, Any] | Fault
        if isinstance(record, Fault):
            result = record
        else:
            result = await service.answer(record, trace)
        outcome = result.outcome if isinstance(result, Fault) else "ok"
    except (Fault, RequestError, EngineError) as error:
        result = fault_of(error)
        outcome = result.outcome
    finally:
        service.metrics.records.labels(outcome).inc()
    return result


async def wait_for_leaving(request: Request, left: asyncio.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    left.set()
