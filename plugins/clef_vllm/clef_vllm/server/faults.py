"""Every way a request can fail: HTTP status, error type, and the name under which metrics count it."""

from typing import Any

from clef_vllm.engine import EngineError
from clef_vllm.requests import RequestError


class Fault(Exception):
    """An error that has an HTTP answer. `retry_after` is in seconds."""

    def __init__(
        self, status: int, outcome: str, message: str, kind: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.outcome, self.message, self.retry_after = status, outcome, message, retry_after
        self.kind = kind or ("api_error" if status >= 500 else "invalid_request_error")

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"type": self.kind, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after)} if self.retry_after else {}


class EngineDied(EngineError):
    """The engine's process is gone; nothing can be answered any more."""

    def __init__(self) -> None:
        super().__init__("the engine has died; the server is stopping")


def fault_of(error: Exception) -> Fault:
    """The HTTP answer to an error raised while a request was handled."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, RequestError):
        return Fault(400, "invalid", str(error))
    if isinstance(error, EngineDied):
        return Fault(503, "engine", str(error), retry_after=30)
    if isinstance(error, EngineError):
        return Fault(500, "engine", str(error))
    raise error
