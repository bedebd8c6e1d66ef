"""What the OpenAPI page says. Bodies are described here and checked by hand: the checks name the question at fault."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

DESCRIPTION = """Typed decisions of a Clef release: probabilities for every option of every question, in one pass.

Every response carries `X-Request-Id` (the one sent, where usable) and `Server-Timing` (queue, decode, encode, engine,
format, total; of a batch, the slowest record's). `X-Clef-Truncated` is the number of records whose state was cut.
"""
_TEXT = {"description": "Text, an object or a list; the question's id stands in for null or empty text"}
_QUESTION = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["noul", "choice", "score"]},
        "instructions": {"type": ["string", "object", "array", "null"], **_TEXT},
        "criteria": {
            "description": "noul: descriptions of true and false (optional); choice: option id to description; "
            "score: list of levels, lowest first",
            "type": ["object", "array", "null"],
        },
    },
}
_IMAGE = {
    "description": "A data URL or content type and base64; PNG, JPEG or WebP. Nothing is fetched.",
    "anyOf": [
        {"type": "string", "pattern": "^[Dd][Aa][Tt][Aa]:image/(png|jpeg|webp);base64,"},
        {
            "type": "object",
            "required": ["content_type", "base64"],
            "properties": {
                "content_type": {"enum": ["image/png", "image/jpeg", "image/webp"]},
                "base64": {"type": "string"},
            },
        },
    ],
}
_RECORD = {
    "type": "object",
    "required": ["model", "state", "questions"],
    "properties": {
        "model": {"type": "string", "description": "Any name; it is echoed"},
        "state": {"description": "Any JSON value; too long a state is cut at its end"},
        "questions": {"type": "object", "minProperties": 1, "additionalProperties": _QUESTION},
        "images": {"type": ["array", "null"], "maxItems": 4, "items": _IMAGE},
        "videos": {
            "type": ["array", "null"],
            "description": "Only where the server allows videos (--limits videos=N)",
            "items": {
                "type": "object",
                "required": ["frames"],
                "properties": {"frames": {"type": "array", "items": _IMAGE}, "fps": {"type": "number"}},
            },
        },
        "return": {"type": "array", "items": {"enum": ["logits"]}, "description": "logits adds the raw option logits"},
    },
}
_EXAMPLE = {
    "model": "clef-flash",
    "state": "Our checkout started returning errors and orders are blocked.",
    "questions": {
        "department": {
            "type": "choice",
            "instructions": "Which team should handle the message?",
            "criteria": {"billing": "Payments or invoices", "technical": "Bugs or outages"},
        },
        "urgency": {"type": "score", "criteria": ["Can wait", "This week", "Today"]},
        "outage": {"type": "noul", "instructions": "Is a service down?"},
    },
}
_ANSWERED = {
    "model": "clef-flash",
    "answers": {
        "department": {
            "type": "choice", "choice": "technical", "confidence": 0.9182,
            "probabilities": {"billing": 0.0818, "technical": 0.9182},
        },
        "urgency": {
            "type": "score", "score": 1.8957, "confidence": 0.9198,
            "legend": {"0": "Can wait", "1": "This week", "2": "Today"},
            "probabilities": {"0": 0.0241, "1": 0.0561, "2": 0.9198},
        },
        "outage": {"type": "noul", "noul": 0.8412},
    },
    "usage": {"input_tokens": 187, "output_tokens": 0},
}  # fmt: skip
_REFUSED = {"error": {"type": "invalid_request_error", "message": "urgency: a score needs at least 2 levels"}}


def _response(text: str, example: Any, media_type: str = "application/json") -> dict[str, Any]:
    return {"description": text, "content": {media_type: {"schema": {}, "example": example}}}


def _fault(kind: str, message: str, text: str) -> dict[str, Any]:
    return _response(text, {"error": {"type": kind, "message": message}})


_FAULTS = {
    400: _response("A fault of the request; the message begins with the question's id", _REFUSED),
    401: _fault("authentication_error", "a bearer token is needed", "Only with --api-key-file"),
    413: _fault("invalid_request_error", "the body is larger than 13631488 bytes", "Body too large"),
    500: _fault("api_error", "the engine returned logits that are not finite", "A fault of the server"),
    503: _fault("api_error", "not ready: warming", "Starting, at capacity, too slow or dead; see Retry-After"),
}
_ONE = {"one": {"summary": "One record", "value": _EXAMPLE}}
_BATCH = {
    "batch": {"summary": "A batch: responses in order, errors in their places", "value": {"requests": [_EXAMPLE]}}
}
_BATCH_SCHEMA = {
    "type": "object",
    "required": ["requests"],
    "properties": {"requests": {"type": "array", "minItems": 1, "maxItems": 256, "items": _RECORD}},
}
_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"anyOf": [_RECORD, _BATCH_SCHEMA]}, "examples": {**_ONE, **_BATCH}},
        "application/x-ndjson": {
            "schema": {"type": "string", "description": "One record a line; one response or error a line comes back"}
        },
    },
}
_WRAPPED = {"result": _ANSWERED, "success": True, "errors": [], "messages": []}
SYSTEMONE: dict[str, Any] = {
    "summary": "Answer a record, or many",
    "openapi_extra": {"requestBody": _BODY},
    "responses": {200: _response("Answers in the order of the questions", _ANSWERED), **_FAULTS},
}
WORKERS_AI: dict[str, Any] = {
    "summary": "The same for clients of Cloudflare's API, in its envelope",
    "openapi_extra": {
        "requestBody": {"required": True, "content": {"application/json": {"schema": _RECORD, "example": _EXAMPLE}}},
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in ("account", "model")
        ],
    },
    "responses": {200: _response("Answers in an envelope", _WRAPPED), **_FAULTS},
}
HEALTH: dict[str, Any] = {
    "summary": "Whether requests are answered",
    "responses": {
        200: _response("Ready: a real inference was made", {"status": "ready", "in_flight": 3, "seconds": 52.1}),
        503: _response(
            "Loading, warming, failed or dead",
            {"status": "loading", "detail": "reading weights and building the engine", "seconds": 12.4},
        ),
    },
}
METRICS: dict[str, Any] = {
    "summary": "Prometheus metrics of the server and of vLLM",
    "responses": {200: _response("Text exposition format", "clef_ready 1.0", "text/plain")},
}
MODELS: dict[str, Any] = {
    "summary": "The one model served",
    "responses": {
        200: _response("A list of one", {"object": "list", "data": [{"id": "clef-flash", "object": "model"}]}),
        401: _FAULTS[401],
    },
}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
    return app.openapi_schema
