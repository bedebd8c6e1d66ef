"""CSV and Parquet rows, and records from named columns."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clefquant.calibration.check import BadRecord
from clefquant.calibration.sources.order import in_order
from clefquant.calibration.sources.tables import CsvFile, ParquetFile
from clefquant.calibration.sources.template import fill
from clefquant.errors import InputError


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'\xef\xbb\xbftext,label\r\n"a, ""b""\nc",1\r\n\r\nx,2,3\r\ncaf\xe9,4\r\nlast,5')
    rows = list(CsvFile(path).read())
    assert rows[0].value == {"text": 'a, "b"\nc', "label": "1"}
    assert (rows[0].place, rows[1].place) == ("in.csv line 3", "in.csv line 5")
    assert rows[1].fault == "3 cells, the header names 2 columns"
    assert "byte 0xe9" in (rows[2].fault or "")
    assert rows[3].value == {"text": "last", "label": "5"}
    assert CsvFile(path).count() == 4


def test_csv_with_an_open_quote_ends(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('text,label\na,1\n"open,2\n')
    rows = list(CsvFile(path).read())
    assert rows[0].value == {"text": "a", "label": "1"}
    assert "not CSV" in (rows[1].fault or "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("text,label\na,1\n".encode("utf-16"), r"in\.csv: its header line: byte 0xff at offset 0 is not UTF-8; save"),
        ("gr\xf6\xdfe,label\na,1\n".encode("cp1252"), "its header line: byte 0xf6 at offset 2 is not UTF-8"),
        (b"text,label\ra,1\r", "its header line: not CSV: new-line character seen"),
    ],
)
def test_a_header_that_cannot_be_read(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "in.csv").write_bytes(data)
    with pytest.raises(InputError, match=reason):
        list(CsvFile(tmp_path / "in.csv").read())


def test_parquet_reads_only_row_groups_that_are_wanted(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path, row_group_size=100)
    file = ParquetFile(path)
    assert file.count() == 1000
    assert [(row.place, row.value["n"]) for row in file.read({3, 450, 999})] == [
        ("in.parquet row 4", 3), ("in.parquet row 451", 450), ("in.parquet row 1000", 999),
    ]  # fmt: skip


def test_parquet_class_names_from_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    features = {
        "info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}}
    }
    table = pa.table({"text": ["a"], "label": [1]}).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path)
    assert ParquetFile(path).class_names == {"label": ["no", "yes"]}


def test_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        ParquetFile(path).count()


def test_drawn_order_is_without_replacement_and_by_seed(tmp_path: Path) -> None:
    files = []
    for part in range(3):
        path = tmp_path / f"{part}.parquet"
        pq.write_table(pa.table({"n": list(range(part * 100, part * 100 + 100))}), path)
        files.append(ParquetFile(path))

    def drawn(seed: str, count: int) -> list[int]:
        return [row.value["n"] for _, row in in_order(files, seed, count)]

    first = drawn("a", 30)
    assert sorted(first) == list(range(300))  # all of them, if the reader goes on asking
    assert first[:30] == sorted(first[:30])
    assert first[:30] != list(range(30))
    assert drawn("a", 30) == first
    assert drawn("b", 30)[:30] != first[:30]
    assert [row.value["n"] for _, row in in_order(files, None, 30)] == list(range(300))


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{n}", 3),
        ("{list}", [1, None]),
        ("{text}!", "hi!"),
        ("{{{n}}}", "{3}"),
        ("{label.name}", "yes"),
        ({"{text}": ["{n}", 1, None, True]}, {"hi": [3, 1, None, True]}),
        ("no columns", "no columns"),
    ],
)
def test_template(template: Any, value: Any) -> None:
    assert fill(template, {"n": 3, "list": [1, None], "text": "hi", "label": 1}, {"label": ["no", "yes"]}) == value


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{missing}", "names the column 'missing'; the row has n, label"),
        ("{n.name}", "the names of the classes in column 'n' are not in the file"),
        ("{label.name}", "the label 7 is not one of 0 to 1"),
        ({"{n}": 1, "3": 2}, "two keys of the template become '3'"),
    ],
)
def test_template_faults(template: Any, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        fill(template, {"n": 3, "label": 7}, {"label": ["no", "yes"]})
