"""One JSON array of records in a file, read element by element so that the file need not fit in memory."""

import codecs
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from clefquant.calibration.sources.json_lines import parse
from clefquant.calibration.sources.rows import Row

BLOCK_BYTES = 1 << 20
_BLANK = re.compile(r"[ \t\r\n]*")
#: No token but a string is longer; a fault further from the end of what is read is none of the cut.
_LONGEST_TOKEN = 16
_NO_END = "the array has no end (a closing bracket is missing)"


def looks_like_array(path: Path) -> bool:
    """Whether a file is one array rather than a value a line: it starts with ``[`` and its first line is not whole by
    itself, or that line is all there is and holds objects, or it is too long for one record."""
    with path.open("rb") as file:
        first, rest = file.readline(BLOCK_BYTES), file.read(1)
    text = first.decode("utf-8-sig", "replace").strip()
    if not text.startswith("["):
        return False
    if len(first) == BLOCK_BYTES:
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return True
    return not rest and isinstance(value, list) and all(isinstance(item, dict) for item in value)


class _Element(NamedTuple):
    place: str
    text: str


@dataclass(frozen=True)
class JsonArray:
    """A file that holds one array. After an element that cannot be told from its neighbours the rest is given up.

    Memory: the longest element, or a block.
    """

    path: Path

    def count(self) -> int:
        """Elements up to the first that is broken, that one included."""
        return sum(1 for _ in self._elements())

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Each element, placed by its number and the line it starts on (both from 1)."""
        for position, element in enumerate(self._elements()):
            if wanted is not None and position not in wanted:
                continue
            if isinstance(element, Row):
                yield element
                continue
            try:
                yield Row(element.place, parse(element.text))
            except ValueError as error:
                yield Row(element.place, fault=_within(error))

    def _elements(self) -> Iterator[_Element | Row]:
        decoder, scan = codecs.getincrementaldecoder("utf-8-sig")(), json.JSONDecoder().raw_decode
        with self.path.open("rb") as file:
            text, at, line, number = "", 0, 1, 0  # what is before `at` is done with
            ended = ""  # why there is nothing more to read
            while True:
                start, at = at, _past_blank(text, at)
                line += text.count("\n", start, at)
                place = f"{self.path.name} line {line}, element {number}"
                if number == 0 and at < len(text):  # the opening bracket
                    at, number = at + 1, 1
                    continue
                if text[at : at + 1] == "]":
                    if _more(text[at + 1 :], file):
                        yield Row(place, fault="there is more after the array's closing bracket; it is not read")
                    return
                found = _element(text, at, scan, bool(ended)) if at < len(text) else None
                if found is _BROKEN or (found is None and ended):
                    yield Row(place, fault=f"{_reason(text[at:], ended or _NO_END)}; the rest is not read")
                    return
                if found is not None:
                    yield _Element(place, text[at : found.end])
                    line += text.count("\n", at, found.next)
                    at, number = found.next, number + 1
                else:
                    text, at = text[at:], 0
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


_BROKEN = _Ends(-1, -1)


def _element(text: str, at: int, scan: Any, ended: bool) -> _Ends | None:
    """Where the element at ``at`` ends and the next begins; None when it is not whole yet."""
    try:
        _, end = scan(text, at)
    except json.JSONDecodeError as error:
        cut = error.msg.startswith("Unterminated string") or error.pos > len(text) - _LONGEST_TOKEN
        return None if cut else _BROKEN
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of brackets
        return _BROKEN
    after = _past_blank(text, end)
    if after == len(text):  # a number could go on, a comma could follow
        return _Ends(end, after) if ended else None
    if text[after] == ",":
        return _Ends(end, after + 1)
    if text[after] == "]":
        return _Ends(end, after)
    return None if end > len(text) - _LONGEST_TOKEN else _BROKEN  # 1.5e3 cut behind the e reads as 1.5 and more


def _past_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _more(text: str, file: BinaryIO) -> bool:
    """Whether anything but blanks is left of a file."""
    rest = text.encode()
    while not rest.strip():
        rest = file.read(BLOCK_BYTES)
        if not rest:
            return False
    return True


def _reason(text: str, ended: str) -> str:
    if ended != _NO_END or not text:
        return ended
    try:
        parse(text)
    except ValueError as error:
        return _within(error)
    return ended


def _within(error: ValueError) -> str:
    """A fault of :func:`parse`, whose columns count from the element's first character."""
    return re.sub(r"^column (\d+)", r"character \1 of the element", str(error))
