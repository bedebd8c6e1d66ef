"""Faults 3.17, 3.19, 4.08: image modes, forms of media, files that cannot be opened."""

import base64
import datetime
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from clefquant.calibration.check import BadRecord
from clefquant.calibration.draft import Draft
from clefquant.calibration.media import open_media
from clefquant.calibration.prepare import Limits, prepare

QUESTIONS = {"q": {"type": "noul", "instructions": "Is it?"}}


def picture(mode: str = "RGB", size: tuple[int, int] = (8, 6), kind: str = "PNG", **save: Any) -> bytes:
    data = io.BytesIO()
    Image.new(mode, size, 3 if mode in ("P", "L", "I;16") else None).save(data, kind, **save)
    return data.getvalue()


def record(*images: Any) -> dict[str, Any]:
    return {"state": "s", "questions": QUESTIONS, "images": list(images)}


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("RGB", "PNG"),
        ("RGBA", "PNG"),
        ("P", "PNG"),
        ("L", "PNG"),
        ("1", "PNG"),
        ("I;16", "PNG"),
        ("LA", "PNG"),
        ("CMYK", "JPEG"),
        ("RGB", "WEBP"),
    ],
)
def test_every_mode_becomes_rgb(mode: str, kind: str) -> None:
    data = picture(mode, kind=kind)
    media = open_media(record(data), None)
    assert media.opened["images"][0].mode == "RGB"
    assert list(media.files.values()) == [data]
    assert media.stored["images"] == [{"file": next(iter(media.files))}]


def test_one_pixel_and_palette_with_alpha() -> None:
    data = picture("P", (1, 1), transparency=0)
    assert open_media(record(data), None).opened["images"][0].size == (1, 1)


def test_exif_turns_the_picture_and_a_broken_block_does_not_stop_it() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    assert open_media(record(picture(kind="JPEG", exif=exif)), None).opened["images"][0].size == (6, 8)
    broken = picture(kind="JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert open_media(record(broken), None).opened["images"][0].size == (8, 6)
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", "not hex")
    assert open_media(record(picture(pnginfo=text)), None).opened["images"][0].size == (8, 6)


def test_forms_of_the_same_picture_have_the_same_content(tmp_path: Path) -> None:
    data = picture()
    (tmp_path / "a.png").write_bytes(data)
    text = base64.b64encode(data).decode()
    forms = [
        data, "a.png", str(tmp_path / "a.png"), f"data:image/png;base64,{text}", f"DATA:IMAGE/PNG;BASE64,{text}",
        {"content_type": "image/png", "base64": text}, {"bytes": data, "path": None}, {"bytes": None, "path": "a.png"},
        {"bytes": data, "path": "elsewhere.png"},
    ]  # fmt: skip
    media = open_media(record(*forms), tmp_path)
    assert len(set(media.pixel_hashes)) == len(media.files) == 1
    other_file = open_media(record(picture(kind="WEBP", lossless=True)), None)
    assert other_file.pixel_hashes == media.pixel_hashes[:1]
    assert other_file.files.keys() != media.files.keys()


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (None, "image 1: there is none"),
        ({"bytes": None, "path": None}, "there is none"),
        ("missing.png", r"missing\.png is not in"),
        ("../secret.png", r"leaves the source's folder"),
        ("/etc/hostname", r"leaves the source's folder"),
        ("https://example.com/cat.png", "URLs are not fetched"),
        ("data:image/png;base64,###", "bad base64"),
        ("data:image/png,abc", "must be base64"),
        ({"content_type": "image/png", "base64": 3}, "bad base64"),
        (b"", "no picture that Pillow reads"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture that Pillow reads"),
        (picture(size=(200, 200))[:-60], "image 1: image file is truncated"),
        (picture("1", (14_000, 14_000)), "image 1: Image size .196000000 pixels. exceeds limit"),
        (7, "int is no image or video"),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path: Path, image: Any, reason: str) -> None:
    (tmp_path.parent / "secret.png").write_bytes(picture())
    with pytest.raises(BadRecord, match=reason):
        open_media(record(image), tmp_path)


def test_a_link_may_not_leave_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside.png"
    outside.write_bytes(picture())
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "link.png").symlink_to(outside)
    with pytest.raises(BadRecord, match="leaves the source's folder"):
        open_media(record("link.png"), folder)


def test_frames_are_all_kept() -> None:
    frames = [picture(size=(8, 6 + number)) for number in range(3)]
    media = open_media({"state": "s", "questions": QUESTIONS, "videos": [frames]}, None)
    assert len(media.stored["videos"][0]["frames"]) == 3
    assert media.stored["media_kwargs"] == {"do_sample_frames": False}
    assert len(media.opened["videos"][0]) == 3


def test_a_state_that_is_no_json_beside_a_picture_is_rejected(encoder):
    """A date cell of a table: the record is left out, the build goes on."""
    draft = Draft("table row 3", "3", {**record(picture()), "state": datetime.date(2026, 1, 2)})
    assert "cannot be written as JSON" in (prepare(draft, Limits("table", 4096), encoder).fault or "")
