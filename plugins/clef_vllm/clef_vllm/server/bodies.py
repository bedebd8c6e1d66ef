"""Bodies in and out: read within a limit, parsed as strict JSON or as lines of it, answered in the same form."""

import json
import math
import re
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from clef_vllm.server.faults import Fault

JSON_TYPES = re.compile(r"application/(json|[a-z0-9.+-]+\+json)")
NDJSON_TYPES = ("application/x-ndjson", "application/jsonl", "application/ndjson")
DRAINED = 8  # times the limit
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body. Fault 413 for one that grows too large, whatever the length header says; 499 when the client leaves.

    The rest is read and dropped, up to a point: a client that is still sending would not read the answer.
    """
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > DRAINED * limit_bytes:
                break
            if size <= limit_bytes:
                parts.append(part)
    except ClientDisconnect:
        raise Fault(499, "cancelled", "the client left before its body was whole") from None
    if size > limit_bytes:
        raise Fault(413, "too_large", f"the body is larger than {limit_bytes} bytes")
    return b"".join(parts)


def content_type(request: Request) -> str:
    """The media type in lower case; JSON where none is given. Fault 400 for one that is not JSON."""
    given = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if given in NDJSON_TYPES or JSON_TYPES.fullmatch(given):
        return given
    raise Fault(400, "invalid", f"content type {given!r}; send application/json or application/x-ndjson")


def parse(raw: bytes) -> Any:
    """JSON in UTF-8 that can be written again: no NaN, no infinite numbers, no half surrogate pairs. Fault 400."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise Fault(400, "invalid", f"the body is not valid JSON in UTF-8: {error}") from error
    return value


def parse_lines(raw: bytes) -> list[Any]:
    """One JSON value or Fault a line; empty lines are skipped. Lines end with a line feed and nothing else."""
    values: list[Any] = []
    for line in raw.split(b"\n"):
        if line.strip():
            try:
                values.append(parse(line))
            except Fault as fault:
                values.append(fault)
    return values


def lines(bodies: list[dict[str, Any]]) -> Response:
    """The answers to `parse_lines`, in its order."""
    text = "".join(json.dumps(body, ensure_ascii=False, allow_nan=False) + "\n" for body in bodies)
    return Response(text.encode("utf-8"), media_type=NDJSON_TYPES[0])


def failure(fault: Fault, path: str) -> Response:
    """A fault as HTTP, in the shape that belongs to the path."""
    body = fault.body
    if path.startswith("/client/"):
        body = envelope(None, [{"code": fault.status, "message": fault.message}])
    return JSONResponse(body, status_code=fault.status, headers=fault.headers)


def envelope(result: Any, errors: list[dict[str, Any]]) -> dict[str, Any]:
    """The shape in which Cloudflare's API wraps a response of Workers AI."""
    return {"result": result, "success": not errors, "errors": errors, "messages": []}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value
