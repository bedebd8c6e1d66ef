"""JSON Lines as found in the wild: a byte order mark, CRLF, empty lines, broken lines, one line of many megabytes.

Lines end at a line feed byte and nowhere else; U+2028 inside a string is a character like any other.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from clefquant.calibration.sources.rows import Row

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _DuplicateKey(ValueError):
    """An object names a key twice; the reader would keep the last one in silence."""


@dataclass(frozen=True)
class JsonLines:
    """A file with one JSON value a line. Empty lines are passed over and not counted."""

    path: Path

    def count(self) -> int:
        """Lines that are not empty."""
        return sum(1 for _ in self._lines())

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Each line as a value or a fault; only wanted lines are parsed."""
        for position, (number, line) in enumerate(self._lines()):
            if wanted is None or position in wanted:
                place = f"{self.path.name} line {number}"
                try:
                    yield Row(place, parse(decode(line)))
                except ValueError as error:
                    yield Row(place, fault=str(error))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                if text.strip(b" \t\r\n"):
                    yield number, text.rstrip(b"\r\n")


def decode(line: bytes) -> str:
    """Text of a line. ValueError names the byte that is not UTF-8 and its offset in the line (from 0)."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte 0x{line[error.start]:02x} at offset {error.start} is not UTF-8; save the file as UTF-8 "
            "(cp1252 and latin-1 are not read)"
        ) from error


def parse(text: str) -> Any:
    """JSON by the book. ValueError says what is wrong and where; NaN and doubled keys are refused."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        before = text[: error.pos].rstrip()
        if before.endswith(",") and text[error.pos : error.pos + 1] in ("}", "]", ""):
            raise ValueError(f"column {error.pos + 1}: a comma before the end (JSON allows none)") from error
        raise ValueError(f"column {error.pos + 1}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("nested too deep to be read") from error


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON; write null or a string")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(f"the key {next(n for n in names if names.count(n) > 1)!r} is there twice in one object")
    return value
