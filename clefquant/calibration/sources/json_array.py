"""One JSON array of records in a file, read element by element so that the file need not fit in memory."""

import codecs
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clefquant.calibration.sources.json_lines import parse
from clefquant.calibration.sources.rows import Row

BLOCK_BYTES = 1 << 20
_BLANK = " \t\r\n"
_NO_END = "the array has no end (a closing bracket is missing)"


def looks_like_array(path: Path) -> bool:
    """Whether a file is one array rather than a value a line: it starts with ``[`` and its first line is not whole by
    itself, or that line is all there is and holds objects."""
    with path.open("rb") as file:
        first, rest = file.readline(), file.read(1)
    text = first.decode("utf-8-sig", "replace").strip()
    if not text.startswith("["):
        return False
    try:
        value = json.loads(text)
    except ValueError:
        return True
    return not rest and isinstance(value, list) and all(isinstance(item, dict) for item in value)


class _Element(NamedTuple):
    line: int
    text: str


@dataclass(frozen=True)
class JsonArray:
    """A file that holds one array. After an element that cannot be told from its neighbours the rest is given up."""

    path: Path

    def count(self) -> int:
        """Elements up to the first that is broken, that one included."""
        return sum(1 for _ in self._elements())

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Each element, placed by the line it starts on."""
        for position, element in enumerate(self._elements()):
            if wanted is not None and position not in wanted:
                continue
            if isinstance(element, Row):
                yield element
                continue
            place = f"{self.path.name} line {element.line}"
            try:
                yield Row(place, parse(element.text))
            except ValueError as error:
                yield Row(place, fault=str(error))

    def _elements(self) -> Iterator[_Element | Row]:
        decoder, scan = codecs.getincrementaldecoder("utf-8-sig")(), json.JSONDecoder().raw_decode
        with self.path.open("rb") as file:
            text, line, started = "", 1, False
            ended = ""  # why there is nothing more to read
            while True:
                skipped = len(text) - len(text.lstrip(_BLANK))
                line += text.count("\n", 0, skipped)
                text = text[skipped:]
                if not started and text:
                    text, started = text.removeprefix("["), True
                    continue
                if text.startswith("]"):
                    return
                found = _element(text, scan, bool(ended)) if text else None
                if found is not None:
                    yield _Element(line, text[: found.end])
                    line += text.count("\n", 0, found.next)
                    text = text[found.next :]
                elif ended:
                    yield Row(f"{self.path.name} line {line}", fault=f"{_reason(text, ended)}; the rest is not read")
                    return
                else:
                    try:
                        block = file.read(max(BLOCK_BYTES, len(text)))  # doubling keeps one huge element linear
                        ended = "" if block else _NO_END
                        text += decoder.decode(block, not block)
                    except UnicodeDecodeError as error:
                        text += error.object[: error.start].decode("utf-8-sig")
                        ended = f"byte 0x{error.object[error.start]:02x} is not UTF-8; save the file as UTF-8"


class _Ends(NamedTuple):
    end: int
    next: int


def _element(text: str, scan: Any, ended: bool) -> _Ends | None:
    """Where the first element of ``text`` ends and the next begins; None when it is not whole yet (or broken)."""
    try:
        _, end = scan(text)
    except (ValueError, RecursionError):
        return None
    after = end
    while after < len(text) and text[after] in _BLANK:
        after += 1
    if after == len(text):  # a number could go on, a comma could follow
        return _Ends(end, after) if ended else None
    if text[after] == ",":
        return _Ends(end, after + 1)
    return _Ends(end, after) if text[after] == "]" else None


def _reason(text: str, ended: str) -> str:
    if ended != _NO_END or not text:
        return ended
    try:
        parse(text)
    except ValueError as error:
        return str(error)
    return ended
