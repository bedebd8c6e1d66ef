"""Images and videos of a record: opened from whatever form they come in, stored by content, opened again for encoding.

An image is a path, a data URL, ``{"bytes", "path"}`` (a data set's column), ``{"content_type", "base64"}`` (a request),
bytes, or ``{"file"}`` (as stored). A video is a path or one of these, or a list of images: its frames, all of which are
used. Nothing is ever fetched from the network, and a path may not leave its source's folder.
"""

import atexit
import base64
import binascii
import functools
import hashlib
import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clefquant.calibration.check import BadRecord
from clefquant.calibration.stored import MEDIA_FOLDER, StoredRecord, StoredSet
from clefquant.errors import InputError

ALL_FRAMES = {"do_sample_frames": False}
"""What the processor needs to keep a list of frames: without frame times it would assume 24 a second and keep a few."""


@dataclass(frozen=True)
class Media:
    """A record with its media apart.

    ``stored``: the record with references; ``opened``: the record as the encoder takes it; ``files``: file name in the
    set to bytes; ``pixel_hashes``: one per image or video, of what the model sees.
    """

    stored: dict[str, Any]
    opened: dict[str, Any]
    files: dict[str, bytes]
    pixel_hashes: list[str]


def open_media(record: Mapping[str, Any], base: Path | None) -> Media:
    """Open every image and video of a record. BadRecord names the one that cannot be opened."""
    from PIL.Image import DecompressionBombError

    stored, opened = dict(record), dict(record)
    files: dict[str, bytes] = {}
    hashes: list[str] = []
    for kind, one in (("images", _image), ("videos", _video)):
        if not record.get(kind):
            continue
        stored[kind], opened[kind] = [], []
        for number, value in enumerate(record[kind], 1):
            try:
                reference, content, new_files, pixels = one(value, base)
            except (OSError, ValueError, SyntaxError, DecompressionBombError) as error:
                reason = str(error) or type(error).__name__
                raise BadRecord(f"{kind.removesuffix('s')} {number}: {reason}") from error
            stored[kind].append(reference)
            opened[kind].append(content)
            files |= new_files
            hashes.append(pixels)
    if any("frames" in reference for reference in stored.get("videos") or ()):
        stored["media_kwargs"] = opened["media_kwargs"] = {**ALL_FRAMES, **(record.get("media_kwargs") or {})}
    return Media(stored, opened, files, hashes)


def attach_media(stored_set: StoredSet, stored: StoredRecord) -> StoredRecord:
    """A record of a set with its media processed: encoded anew, which must give the tokens that are stored."""
    try:
        opened = open_media(stored.record, stored_set.path).opened
    except BadRecord as error:
        raise InputError(f"{stored_set.path}: {stored.record_id}: {error}; build the set again.") from error
    longest, state = stored_set.limits(stored.source)
    encoder = stored_set.encoder
    encoded = encoder.encode(opened, stored.record_id, max_length=longest, max_state_tokens=state).record
    if encoded.input_ids != stored.encoded.input_ids:
        raise InputError(
            f"{stored_set.path}: {stored.record_id} has other tokens than stored: the release's processor or "
            "its packages changed. Build the set again."
        )
    return replace(stored, encoded=encoded, folder=stored_set.path)


def _image(value: Any, base: Path | None) -> tuple[dict[str, Any], Any, dict[str, bytes], str]:
    from PIL import Image, ImageOps, UnidentifiedImageError

    data = _bytes(value, base)
    try:
        opened = Image.open(io.BytesIO(data))
    except UnidentifiedImageError as error:
        raise ValueError(f"its {len(data):,} bytes are no picture that Pillow reads") from error
    with opened as picture:
        suffix = (picture.format or "bin").lower()
        picture.load()
        try:
            upright = ImageOps.exif_transpose(picture)
        except Exception:  # a damaged EXIF block raises anything at all; the pixels are whole
            upright = picture
        rgb = upright.convert("RGB")
    name = _name(data, "jpg" if suffix == "jpeg" else suffix)
    pixels = hashlib.sha256(f"{rgb.size}".encode() + rgb.tobytes()).hexdigest()
    return {"file": name}, rgb, {name: data}, pixels


def _video(value: Any, base: Path | None) -> tuple[dict[str, Any], Any, dict[str, bytes], str]:
    frames = value.get("frames") if isinstance(value, Mapping) else value if isinstance(value, list) else None
    if frames:
        parts = [_image({"file": f} if isinstance(value, Mapping) else f, base) for f in frames]
        files = {name: data for part in parts for name, data in part[2].items()}
        pixels = hashlib.sha256("".join(part[3] for part in parts).encode()).hexdigest()
        return {"frames": [part[0]["file"] for part in parts]}, [part[1] for part in parts], files, pixels
    data = _bytes(value, base)
    name = _name(data, _video_suffix(data))
    path = _video_folder() / Path(name).name  # the processor's decoders open paths alone
    path.write_bytes(data)
    return {"file": name}, str(path), {name: data}, hashlib.sha256(data).hexdigest()


@functools.cache
def _video_folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="clefquant-video-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _bytes(value: Any, base: Path | None) -> bytes:
    """The bytes of a medium in any form. ValueError or OSError says why there are none."""
    stored = False
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, Mapping):
        if value.get("bytes"):
            return bytes(value["bytes"])
        if "base64" in value:
            return _base64(value["base64"])
        stored = "file" in value
        value = value.get("file") or value.get("path")
    if value is None:
        raise ValueError("there is none (neither bytes nor a path)")
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is no image or video; use a path, a data URL or bytes")
    if value[:5].lower() == "data:":
        head, comma, body = value.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError("a data URL must be base64 (data:image/png;base64,…)")
        return _base64(body)
    if "://" in value[:12]:
        raise ValueError("URLs are not fetched; download it and give the path")
    data = _file(value, base).read_bytes()
    if stored and _name(data, "") != value.rpartition(".")[0] + ".":
        raise ValueError(f"{value} is not what was stored (its content has another hash)")
    return data


def _file(name: str, base: Path | None) -> Path:
    folder = (base or Path()).resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder):
        raise ValueError(f"{name} leaves the source's folder {folder}")
    if not path.is_file():
        raise ValueError(f"{name} is not in {folder}")
    return path


def _base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"bad base64: {error}") from error


def _name(data: bytes, suffix: str) -> str:
    return f"{MEDIA_FOLDER}/{hashlib.sha256(data).hexdigest()[:32]}.{suffix}"


def _video_suffix(data: bytes) -> str:
    if data[4:8] == b"ftyp":
        return "mp4"
    return {b"\x1aE\xdf\xa3": "webm", b"RIFF": "avi", b"GIF8": "gif"}.get(data[:4], "bin")
