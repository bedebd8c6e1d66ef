"""Images and videos on the wire, decoded to what the release's processor expects. Nothing is ever fetched.

An image is a data URL or {content_type, base64}; a video is {"frames": [image, ...], "fps": frames per second}, because
decoders of video files are a large and dangerous dependency and disagree on which frames a file has.
"""

import base64
import binascii
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clef_vllm.media import FPS
from clef_vllm.requests import RequestError

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,", re.IGNORECASE)


@dataclass(frozen=True)
class ImageDecoder:
    max_bytes: int = 4 * 2**20
    max_pixels: int = 16_000_000
    max_frames: int = 64  # of a video

    def media(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record with its images and videos decoded, and only with what belongs to a record."""
        known = {name: record[name] for name in ("model", "state", "questions")}
        videos = [self._video(number, value) for number, value in enumerate(record.get("videos") or [])]
        return {
            **known,
            "images": [
                self.decode(f"image {number}", value) for number, value in enumerate(record.get("images") or [])
            ],
            "videos": [frames for frames, _ in videos],
            "media_kwargs": {"video_metadata": [{"fps": fps} for _, fps in videos]},
        }

    def _video(self, number: int, value: Any) -> tuple[list[Any], float]:
        """Frames and their rate."""
        frames, fps = (value.get("frames"), value.get("fps", FPS)) if isinstance(value, dict) else (None, FPS)
        if not isinstance(frames, list) or not 0 < len(frames) <= self.max_frames:
            raise RequestError(f"video {number}: expected an object with 1 to {self.max_frames} frames (images)")
        if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
            raise RequestError(f"video {number}: fps must be a number above 0 and at most 1000, got {fps!r}")
        return [self.decode(f"video {number}, frame {at}", frame) for at, frame in enumerate(frames)], float(fps)

    def decode(self, name: str, value: Any) -> Any:
        """An image as an RGB PIL image. RequestError begins with its name."""
        from PIL import Image, UnidentifiedImageError

        kind, text = _split(name, value)
        if kind not in FORMATS:
            raise RequestError(f"{name}: content type {kind!r}, allowed are {', '.join(FORMATS)}")
        if len(text) > self.max_bytes * 4 // 3 + 4:
            raise RequestError(f"{name}: larger than {self.max_bytes} bytes")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RequestError(f"{name}: not valid base64 ({error})") from error
        try:
            # Opening reads the header only, so a decompression bomb is refused before its pixels exist.
            image = Image.open(io.BytesIO(data), formats=[FORMATS[kind]])
            if image.width * image.height > self.max_pixels:
                raise RequestError(
                    f"{name}: {image.width} x {image.height} pixels, at most {self.max_pixels} are allowed"
                )
            return image.convert("RGB")
        except RequestError:
            raise
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise RequestError(f"{name}: cannot be decoded as {kind}") from error


def _split(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, str):
        found = _DATA_URL.match(value)
        if not found:
            raise RequestError(
                f"{name}: expected a data URL (data:image/png;base64,...); remote addresses are not fetched"
            )
        return found[1].lower(), value[found.end() :]
    if isinstance(value, dict) and isinstance(value.get("base64"), str) and isinstance(value.get("content_type"), str):
        return value["content_type"].lower(), value["base64"]
    raise RequestError(f"{name}: expected a data URL or an object with content_type and base64")
