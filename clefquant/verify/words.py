"""How figures are spelled in tables, the same on every page."""

from collections.abc import Mapping, Sequence
from typing import Any

_MEMORY = {"device_memory_gib": "device memory", "host_memory_gib": "host memory"}


def share(figure: Mapping[str, float] | None, digits: int = 1) -> str:
    """A share as a percentage without the sign."""
    return "–" if figure is None else f"{100 * figure['value']:.{digits}f}"


def small(figure: Mapping[str, float] | None) -> str:
    """A KL or TV with two significant digits, at least four decimals."""
    if figure is None:
        return "–"
    value = figure["value"]
    return f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}" if abs(value) < 0.01 else f"{value:.3f}"


def interval(figure: Mapping[str, float] | None, scale: float = 100, digits: int = 1) -> str:
    """Both bounds, scaled."""
    if figure is None:
        return "–"
    low, high = (f"{scale * figure[end]:.{digits}f}" for end in ("low", "high"))
    return f"{low} to {high}" if figure["low"] < 0 else f"{low}–{high}"  # a dash beside a minus sign misleads


def engine(about: Mapping[str, Any]) -> str:
    """An engine with what is known of it: versions, chip, dtype, memory."""
    versions = ", ".join(f"{name} {version}" for name, version in (about.get("versions") or {}).items())
    text = f"{about['engine']} ({versions})" if versions else str(about["engine"])
    text += "".join(f", {about[key]}" for key in ("chip", "dtype") if about.get(key))
    held = [f"{about[key]} GiB of {what}" for key, what in _MEMORY.items() if about.get(key)]
    return f"{text}; {' and '.join(held)} in use" if held else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right; cells are escaped."""
    lines = ["| " + " | ".join(_cell(cell) for cell in header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
