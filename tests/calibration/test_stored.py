"""The set on disk: exact records, refusal of what is damaged, newer or of another tokenizer, media opened anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clefquant.calibration.build import Built
from clefquant.calibration.request import request_body
from clefquant.calibration.show import parts, show_record
from clefquant.calibration.stored import HEADER_FILE, RECORDS_FILE, StoredSet, open_set, read_lines
from clefquant.errors import InputError
from clefquant.release.code import release_code
from clefquant.release.release import Release

from .conftest import record

Build = Callable[..., Built]


@pytest.fixture
def made(build: Build, lines: Callable[..., Path]) -> Path:
    choice = {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": "second"}}
    given = [
        {**record("first", team=choice), "answers": {"team": "b"}},
        record(
            {"k": None, "other": [1, None]},
            mood={"type": "score", "instructions": "How?", "criteria": ["low", None, "high"]},
        ),
    ]
    return build({"name": "r", "kind": "file", "path": lines(given).name, "order": "first"}).path


def reopen(path: Path, release: Release) -> StoredSet:
    return open_set(path, release.path, release_code(release.path))


def test_nothing_is_padded(made: Path) -> None:
    first, second = (line["record"] for line in read_lines(made))
    assert first["questions"] == {
        "team": {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": "second"}}
    }
    assert second["state"] == {"k": None, "other": [1, None]}
    assert second["questions"]["mood"]["criteria"] == ["low", None, "high"]
    assert "images" not in first


def test_header_says_where_it_comes_from(made: Path, tiny: Release) -> None:
    header = json.loads((made / HEADER_FILE).read_text())
    assert (header["records"], header["split"], header["schema_version"], header["seed"]) == (2, "calibration", 1, 0)
    assert header["sources"][0]["origin"] == {"origin": "records.jsonl"}
    assert len(reopen(made, tiny).fingerprint) == 64
    assert (made / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((made / "report.json").read_text())["command"][0] == "clefquant"


def test_damage_another_tokenizer_and_a_newer_schema_are_refused(made: Path, tiny: Release) -> None:
    header = json.loads((made / HEADER_FILE).read_text())
    (made / HEADER_FILE).write_text(json.dumps({**header, "tokenizer_sha256": "0" * 64}))
    with pytest.raises(InputError, match=r"encoded with another tokenizer\.json"):
        reopen(made, tiny)
    (made / HEADER_FILE).write_text(json.dumps({**header, "schema_version": 99}))
    with pytest.raises(InputError, match="schema_version 99"):
        reopen(made, tiny)
    (made / HEADER_FILE).write_text(json.dumps(header))
    with (made / RECORDS_FILE).open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=r"is not the file that set\.json describes"):
        reopen(made, tiny)
    with pytest.raises(InputError, match="does not exist"):
        reopen(made / "none", tiny)


def test_show_marks_spans(made: Path, tiny: Release) -> None:
    stored = reopen(made, tiny)
    first = next(iter(stored))
    found = list(parts(first, stored.encoder.tokenizer.tokenizer))
    assert sum(part.tokens for part in found) == first.tokens
    assert [(part.role, part.label) for part in found if part.role] == [
        ("instruction", "team"),
        ("option", "a"),
        ("gold", "b"),
    ]
    assert next(part.text for part in found if part.role == "gold") == '{"description":"second","option_id":"b"}'
    text = show_record(stored, 1).plain
    assert "STATE:\nfirst" in text
    assert "gold  team = b" in text
    with pytest.raises(InputError, match="records 1 to 2, got 3"):
        show_record(stored, 3)


@pytest.fixture
def pictures(build: Build, tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        Image.effect_noise((64, 48 + 16 * number), 40).convert("RGB").save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no")
    (folder / "notes.txt").write_text("not a picture")
    source = {
        "name": "photos",
        "kind": "images",
        "path": "pictures",
        "questions": record()["questions"],
        "order": "first",
    }
    return build(source).path


def test_pictures_are_kept_and_processed_anew(pictures: Path, tiny: Release) -> None:
    stored = reopen(pictures, tiny)
    assert len(list((pictures / "media").iterdir())) == 3
    for item in stored:
        assert item.encoded.media["pixel_values"].ndim == 2
        assert request_body(item)["images"][0].startswith("data:image/png;base64,")
        opened = {**item.record, "images": [Image.open(pictures / item.record["images"][0]["file"]).convert("RGB")]}
        encoder = stored.encoder
        direct = stored.code.encode_record(encoder.tokenizer.tokenizer, opened, processor=encoder.processor)
        assert item.encoded.input_ids == direct.input_ids
        assert (item.encoded.media["pixel_values"] == direct.media["pixel_values"]).all()
    assert [line["id"] for line in read_lines(pictures)] == ["photos/0.png", "photos/1.png", "photos/2.png"]
    rejected = [json.loads(line) for line in (pictures / "rejected.jsonl").read_text().splitlines()]
    assert [item["place"] for item in rejected] == ["broken.png"]
    assert "<|image_pad|>" in show_record(stored, 1).plain


def test_a_lost_picture_is_named(pictures: Path, tiny: Release) -> None:
    next((pictures / "media").iterdir()).unlink()
    with pytest.raises(InputError, match=r"photos/\d\.png: image 1: media/.* is not in"):
        list(reopen(pictures, tiny))


def test_the_same_picture_overlaps_whatever_is_asked(build: Build, pictures: Path, tmp_path: Path) -> None:
    other = {"q": {"type": "noul", "instructions": "Is it dark?"}}
    source: dict[str, Any] = {
        "name": "again",
        "kind": "images",
        "path": "pictures",
        "questions": other,
        "state": "another state",
    }
    with pytest.raises(InputError, match="not one record is left"):
        build(source, out="again", against=[pictures], drop_overlap=True)


def test_a_changed_picture_is_named(pictures: Path, tiny: Release) -> None:
    one, other = sorted((pictures / "media").iterdir())[:2]
    one.write_bytes(other.read_bytes())
    with pytest.raises(InputError, match="is not what was stored"):
        list(reopen(pictures, tiny))
