"""What an audit finds."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One fault or remark. ``check``: its kind, a stable name; ``file`` and ``tensor``: where, when it is in one
    place."""

    severity: Severity
    check: str
    message: str
    remedy: str
    file: str | None = None
    tensor: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def error(check: str, message: str, remedy: str, file: str | None = None, tensor: str | None = None) -> Finding:
    """A finding that makes the release wrong or unloadable."""
    return Finding("error", check, message, remedy, file, tensor)


def warning(check: str, message: str, remedy: str, file: str | None = None, tensor: str | None = None) -> Finding:
    """A finding that can be lived with."""
    return Finding("warning", check, message, remedy, file, tensor)


def info(check: str, message: str, remedy: str = "", file: str | None = None, tensor: str | None = None) -> Finding:
    """A remark."""
    return Finding("info", check, message, remedy, file, tensor)
