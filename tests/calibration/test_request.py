"""What is sent of a stored record: no reference to a file, and the very pixels that the set was encoded from."""

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clefquant.calibration.media import open_media
from clefquant.calibration.request import check_sendable, request_body
from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError

from .test_media import picture, record


def stored(folder: Path, given: dict[str, Any]) -> StoredRecord:
    media = open_media(given, None)
    for name, data in media.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return StoredRecord("r", "g", "s", media.stored, {}, None, folder=folder)


def served(url: str) -> tuple[str, bytes, Image.Image]:
    """Content type, bytes, and the picture as a server reads it."""
    head, _, body = url.partition(";base64,")
    data = base64.b64decode(body)
    return head, data, Image.open(io.BytesIO(data)).convert("RGB")


def turned() -> bytes:
    data, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.effect_noise((8, 6), 40).convert("RGB").save(data, "JPEG", exif=exif)
    return data.getvalue()


def test_images_travel_as_data(tmp_path: Path) -> None:
    given = [picture(), picture("P", kind="PNG"), picture(kind="WEBP"), turned(), picture("P", kind="GIF")]
    one = stored(tmp_path, record(*given))
    seen = open_media(one.record, tmp_path).opened["images"]
    body = request_body(one)
    found = [served(url) for url in body["images"]]
    assert [head for head, _, _ in found] == [f"data:image/{kind}" for kind in ("png", "png", "webp", "png", "png")]
    assert [data for _, data, _ in found[:3]] == given[:3]
    assert all(a.tobytes() == b.tobytes() for (_, _, a), b in zip(found, seen, strict=True))
    assert body["questions"] == one.record["questions"]


def test_a_video_travels_as_its_frames(tmp_path: Path) -> None:
    frames = [picture(size=(8, 6)), picture("L", size=(8, 6))]
    given = {**record(), "videos": [frames], "media_kwargs": {"video_metadata": [{"fps": 2}]}}
    one = stored(tmp_path, given)
    check_sendable(one)
    body = request_body(one)
    assert [served(url)[1] for url in body["videos"][0]["frames"]] == frames
    assert body["videos"][0]["fps"] == 2
    assert "media_kwargs" not in body


def test_a_video_file_cannot_be_sent(tmp_path: Path) -> None:
    one = stored(tmp_path, {**record(), "videos": [{"bytes": b"0000ftyp"}]})
    with pytest.raises(InputError, match="record r holds a video file"):
        check_sendable(one)
