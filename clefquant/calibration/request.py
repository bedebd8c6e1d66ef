"""A stored record as the body of a request: media are the data themselves, since a server opens no files of ours."""

import base64
import io
from pathlib import Path
from typing import Any

from clefquant.calibration.media import open_media
from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError

#: Picture formats that SystemOne takes.
_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}


def check_sendable(record: StoredRecord) -> None:
    """InputError when the record holds a video file: SystemOne takes a video as its frames."""
    if any("file" in video for video in record.record.get("videos") or ()):
        raise InputError(
            f"record {record.record_id} holds a video file, and a server takes frames alone. Leave it out, or build "
            "the set from lists of frames."
        )


def request_body(record: StoredRecord) -> dict[str, Any]:
    """The record with images as data URLs and videos as ``{"frames": […], "fps"}``, what the model sees unchanged."""
    body = {key: value for key, value in record.record.items() if key != "media_kwargs"}  # frames are all used anyway
    if record.folder is None:
        return body
    media = open_media(record.record, record.folder)
    if images := media.stored.get("images"):
        body["images"] = [
            _data_url(record.folder / reference["file"], picture)
            for reference, picture in zip(images, media.opened["images"], strict=True)
        ]
    if videos := media.stored.get("videos"):
        rates = (record.record.get("media_kwargs") or {}).get("video_metadata") or [{}] * len(videos)
        body["videos"] = [
            {
                "frames": [
                    _data_url(record.folder / name, picture)
                    for name, picture in zip(reference["frames"], pictures, strict=True)
                ],
                **{key: value for key, value in rate.items() if key == "fps"},
            }
            for reference, pictures, rate in zip(videos, media.opened["videos"], rates, strict=True)
        ]
    return body


def _data_url(file: Path, seen: Any) -> str:
    """The file's own bytes where a server sees ``seen`` (an RGB picture) in them, else ``seen`` as PNG."""
    from PIL import Image

    data = file.read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        kind = picture.format or ""
        same = picture.size == seen.size and picture.convert("RGB").tobytes() == seen.tobytes()
    if not same or kind not in _TYPES:  # a server turns no picture upright
        buffer, kind = io.BytesIO(), "PNG"
        seen.save(buffer, kind)
        data = buffer.getvalue()
    return f"data:{_TYPES[kind]};base64,{base64.b64encode(data).decode()}"
