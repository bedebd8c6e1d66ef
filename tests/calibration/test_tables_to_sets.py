"""Tables with named columns, from the file to the set."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clefquant.calibration.build import Built
from clefquant.calibration.stored import open_set, read_lines
from clefquant.errors import InputError
from clefquant.release.code import release_code
from clefquant.release.release import Release

Build = Callable[..., Built]
COLUMNS: dict[str, Any] = {
    "state": {"subject": "{title}", "text": "Said: {body}"},
    "questions": {
        "mood": {"type": "choice", "instructions": "How is it?", "criteria": {"good": None, "bad": "{{not good}}"}}
    },
    "answers": {"mood": "{label}"},
}


def picture() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(data, "PNG")
    return data.getvalue()


def test_csv_by_template(build: Build, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("title,body,label\nA,one,good\nB,two,awful\nC,three,bad\n")
    built = build(
        {"name": "t", "kind": "file", "path": "in.csv", "columns": COLUMNS, "order": "first", "license": "MIT"}
    )
    first, second = read_lines(built.path)
    assert first["record"]["state"] == {"subject": "A", "text": "Said: one"}
    assert first["record"]["questions"]["mood"]["criteria"] == {"good": None, "bad": "{not good}"}
    assert (first["answers"], second["answers"]) == ({"mood": "good"}, {"mood": "bad"})
    rejection = built.report["sources"][0]["rejections"][0]
    assert (rejection["place"], "'awful' is no option" in rejection["reason"]) == ("in.csv line 3", True)
    assert built.report["sources"][0]["license"] == "MIT"


def test_a_column_that_is_not_there(build: Build, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("title,body\nA,one\n")
    with pytest.raises(InputError, match="names the column 'label'; the row has title, body"):
        build({"name": "t", "kind": "file", "path": "in.csv", "columns": COLUMNS})


def test_parquet_questions_as_text_and_as_struct(build: Build, tmp_path: Path) -> None:
    texts = ['{"a": {"type": "noul"}}', '{"b": {"type": "score", "criteria": ["x", "y"]}}']
    pq.write_table(
        pa.table({"state": ["s1", "s2"], "questions": texts, "answers": ['{"a": true}', None]}), tmp_path / "in.parquet"
    )
    built = build({"name": "t", "kind": "file", "path": "in.parquet", "order": "first"})
    assert [list(line["record"]["questions"]) for line in read_lines(built.path)] == [["a"], ["b"]]
    assert next(read_lines(built.path))["answers"] == {"a": "true"}
    padded = [
        {"state": "s", "questions": {"a": {"type": "noul"}}},
        {"state": "s", "questions": {"b": {"type": "noul"}}},
    ]
    pq.write_table(pa.Table.from_pylist(padded), tmp_path / "struct.parquet")
    with pytest.raises(InputError, match="questions is a struct column"):
        build({"name": "t", "kind": "file", "path": "struct.parquet"}, out="struct")


def test_image_columns_as_the_hub_keeps_them(build: Build, tmp_path: Path, tiny: Release) -> None:
    """Fault 4.08: bytes, a path alone, nothing."""
    folder = tmp_path / "copy" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "copy" / "data" / "2.png").write_bytes(picture())
    images = [
        {"bytes": picture(), "path": "1.png"},
        {"bytes": None, "path": "data/2.png"},
        None,
        {"bytes": None, "path": "3.png"},
    ]
    rows = [{"image": image, "caption": ["A dog on grass ."], "img_id": str(n)} for n, image in enumerate(images)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")
    source = {
        "name": "p",
        "kind": "hub",
        "dataset": "a/b",
        "path": "copy",
        "split": "test",
        "adapter": "flickr30k",
        "order": "first",
    }
    built = build(source)
    stored = list(open_set(built.path, tiny.path, release_code(tiny.path)))
    assert [item.record_id for item in stored] == ["p/0"]  # the second holds the same picture and questions
    assert stored[0].encoded.media is not None
    assert stored[0].answers == {"outdoors": "true", "subject": "dog", "people": "0"}
    assert (built.report["duplicates"], built.report["rejected"]) == (1, 2)
    assert [item["reason"] for item in built.report["sources"][0]["rejections"]] == [
        "the row has no image",
        f"image 1: 3.png is not in {(tmp_path / 'copy').resolve()}",
    ]
