"""Around every response: request id, Server-Timing, counts by route and status, and no exception without an answer."""

import logging

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clef_vllm.server.bodies import failure
from clef_vllm.server.faults import Fault
from clef_vllm.server.metrics import Metrics
from clef_vllm.server.trace import Trace

logger = logging.getLogger("vllm.clef_vllm.server")
_KEY = "clef_trace"


def trace_of(request: Request) -> Trace:
    trace: Trace = request.scope[_KEY]
    return trace


class Tracing:
    """ASGI middleware; opens a Trace for each HTTP request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        trace = scope[_KEY] = Trace.of(given)
        status = 0

        async def traced(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *trace.headers()]}
            await send(message)

        try:
            await self.app(scope, receive, traced)
        except Exception:
            logger.exception("request %s: a fault of the server", trace.id)
            if status:
                raise
            fault = Fault(500, "internal", f"a fault of the server; request id {trace.id}")
            self.metrics.records.labels(fault.outcome).inc()
            await failure(fault, scope["path"])(scope, receive, traced)
        finally:
            self._observe(scope, trace, status)

    def _observe(self, scope: Scope, trace: Trace, status: int) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.responses.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(trace.elapsed)
