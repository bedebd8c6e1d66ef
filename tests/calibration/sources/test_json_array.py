"""One array in a file: read element by element, wherever the blocks end, in the memory of one element."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clefquant.calibration.sources import json_array
from clefquant.calibration.sources.json_array import JsonArray
from clefquant.calibration.sources.json_lines import JsonLines
from clefquant.calibration.sources.rows import Row, open_rows

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def read(tmp_path: Path) -> Any:
    return lambda data: list(open_rows(write(tmp_path / "in.json", data)).read())


@pytest.mark.parametrize("block_bytes", range(1, 9))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(VALUES, max_size=6), escaped=st.booleans(), gap=st.sampled_from([",", " , ", ",\r\n"]))
def test_the_values_do_not_depend_on_where_blocks_end(
    tmp_path: Path, block_bytes: int, values: list[Any], escaped: bool, gap: str
) -> None:
    """Blocks of a few bytes end inside strings, escapes, numbers and characters of several bytes."""
    text = "[" + gap.join(json.dumps(value, ensure_ascii=escaped) for value in values) + "]\n"
    file = write(tmp_path / "in.json", text.encode("utf-8", "surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "BLOCK_BYTES", block_bytes)
        rows = list(JsonArray(file).read())
    assert [(row.value, row.fault) for row in rows] == [(value, None) for value in values]


def test_elements_are_placed_by_number_and_line(read: Any, tmp_path: Path) -> None:
    rows = read(b'\xef\xbb\xbf[\n {"a": "]"},\r\n\n {"a": [1, {"b": "}"}]}\n]\n')
    assert [(row.place, row.value) for row in rows] == [
        ("in.json line 2, element 1", {"a": "]"}), ("in.json line 4, element 2", {"a": [1, {"b": "}"}]}),
    ]  # fmt: skip
    assert isinstance(open_rows(tmp_path / "in.json"), JsonArray)
    assert read(b"[]") == []
    assert [row.place for row in read(b'[{"a":1},{"a":2}]')] == [
        "in.json line 1, element 1", "in.json line 1, element 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "good", "place", "fault"),
    [
        (b'[\n{"a":1},\n{"a":2,}\n]', 1, "line 3, element 2", "character 8 of the element: a comma before the end"),
        (b'[\n{"a":1}\n', 1, "line 3, element 2", "the array has no end"),
        (b'[\n{"a":1},\n{"a":"\x92"}\n]', 1, "line 3, element 2", "byte 0x92 is not UTF-8"),
        (b'[\n{"a":1},\n{"a":1,"a":2},\n{"a":3}]', 2, "line 3, element 2", "twice"),
        (b'[{"a":1},{"a":2} {"a":3}]', 1, "line 1, element 2", "character 9 of the element: not JSON: Extra data"),
        (b'[{"a":1}, {"a":x},' + b" " * 99 + b"]", 1, "line 1, element 2", "character 6 of the element: not JSON"),
        (b'[{"a":1}, ' + b"[" * 100_000, 1, "line 1, element 2", "nested too deep"),
        (b'[{"a":1}, ' + b"1" * 5_000 + b"]", 1, "line 1, element 2", "4300"),
        (b'[\n{"a":1}]\n\n{"a":2}', 1, "line 2, element 2", "more after the array's closing bracket"),
    ],
)
def test_a_broken_array(read: Any, data: bytes, good: int, place: str, fault: str) -> None:
    rows = read(data)
    assert sum(row.fault is None for row in rows) == good
    faults = [row for row in rows if row.fault is not None]
    assert faults[0].place == f"in.json {place}"
    assert fault in (faults[0].fault or "")


def test_deep_brackets_are_no_crash(read: Any) -> None:
    assert [row.fault is None for row in read(b"[" * 100_000)] == [False]


@pytest.mark.parametrize("end", [b"]", b', {"state": oops}]'], ids=["whole", "broken"])
def test_one_long_line_is_read_in_the_memory_of_a_block(tmp_path: Path, monkeypatch: Any, end: bytes) -> None:
    monkeypatch.setattr(json_array, "BLOCK_BYTES", 1 << 14)
    element = b'{"state": "' + b"word " * 50 + b'"}'
    data = b"[" + b", ".join([element] * 20_000) + end + b" " * 1_000_000
    file = write(tmp_path / "in.json", data)
    del data
    tracemalloc.start()
    rows = open_rows(file)
    assert isinstance(rows, JsonArray)
    count = sum(1 for _ in rows.read())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000 + (end != b"]")
    assert peak_bytes < 20 * (1 << 14)


def test_what_is_a_value_a_line(tmp_path: Path) -> None:
    for data in (b'[{"a":1}]\n[{"a":2}]', b"[1, 2]\n", b'{"a": [\n'):
        assert isinstance(open_rows(write(tmp_path / "in.json", data)), JsonLines)


def test_only_wanted_elements_are_parsed(tmp_path: Path) -> None:
    file = JsonArray(write(tmp_path / "in.json", b"[0, NaN, 2, 3]"))
    assert file.count() == 4
    assert list(file.read({0, 3})) == [
        Row("in.json line 1, element 1", 0), Row("in.json line 1, element 4", 3),
    ]  # fmt: skip
