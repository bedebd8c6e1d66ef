"""Faults 4.03 and 4.04: encodings, line ends and broken lines, each with its line number."""

from pathlib import Path
from typing import Any

import pytest

from clefquant.calibration.sources.json_lines import JsonLines
from clefquant.calibration.sources.rows import Row, open_rows
from clefquant.errors import InputError


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def faults(rows: list[Row]) -> list[tuple[str, str]]:
    return [(row.place, row.fault) for row in rows if row.fault is not None]


@pytest.fixture
def read(tmp_path: Path) -> Any:
    return lambda data, name="in.jsonl": list(open_rows(write(tmp_path / name, data)).read())


def test_byte_order_mark_crlf_empty_lines_and_no_last_line_end(read: Any) -> None:
    rows = read(b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"a":2}')
    assert [(row.place, row.value) for row in rows] == [("in.jsonl line 1", {"a": 1}), ("in.jsonl line 4", {"a": 2})]


def test_unicode_line_separators_do_not_split(read: Any) -> None:
    text = "a\u2028b\u2029c\u0085d"
    rows = read(f'["{text}"]\n["\\u000b\\f"]\n'.encode())
    assert [row.value for row in rows] == [[text], ["\x0b\x0c"]]


def test_cp1252_is_refused_with_line_and_offset(read: Any) -> None:
    rows = read(b'{"a":"ok"}\n{"a":"it\x92s"}\n{"a":"fine"}\n')
    assert [row.value for row in rows] == [{"a": "ok"}, None, {"a": "fine"}]
    place, fault = faults(rows)[0]
    assert place == "in.jsonl line 2"
    assert "byte 0x92 at offset 8 is not UTF-8" in fault


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a":1,}', "column 8: a comma before the end"),
        (b'{"a":1', "not JSON"),
        (b"{'a':1}", "column 2: not JSON"),
        (b'{"a":1} {"a":2}', "Extra data"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":1,"b":2,"a":3}', "the key 'a' is there twice"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_broken_line_is_reported_and_the_next_is_read(read: Any, line: bytes, fault: str) -> None:
    rows = read(b'{"n":1}\n' + line + b'\n{"n":3}\n')
    assert [row.value for row in rows] == [{"n": 1}, None, {"n": 3}]
    assert faults(rows)[0][0] == "in.jsonl line 2"
    assert fault in faults(rows)[0][1]


def test_types_stay_as_they_are(read: Any) -> None:
    data = b'{"state":"1"}\n{"state":1}\n{"state":{"b":1,"a":null}}\n{"state":1.0}\n{"state":true}\n'
    assert [row.value["state"] for row in read(data)] == ["1", 1, {"b": 1, "a": None}, 1.0, True]
    assert list(read(data)[2].value["state"]) == ["b", "a"]


def test_one_line_of_twenty_megabytes(read: Any) -> None:
    rows = read(b'{"state":"' + b"x" * 20_000_000 + b'"}\n{"state":"y"}\n')
    assert [len(row.value["state"]) for row in rows] == [20_000_000, 1]


def test_only_wanted_lines_are_parsed(tmp_path: Path) -> None:
    file = JsonLines(write(tmp_path / "in.jsonl", b"0\n\n1\nbroken\n3\n"))
    assert file.count() == 4
    assert [row.value for row in file.read({1, 3})] == [1, 3]


def test_no_such_file_and_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        open_rows(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"no reader for \.xlsx"):
        open_rows(write(tmp_path / "in.xlsx", b""))
