"""Images on the wire: data URLs or {content_type, base64}, decoded to what the release's processor expects."""

import base64
import binascii
import io
import re
from dataclasses import dataclass
from typing import Any

from clef_vllm.requests import RequestError

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP"}
_DATA_URL = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,", re.IGNORECASE)


@dataclass(frozen=True)
class ImageDecoder:
    max_bytes: int = 4 * 2**20
    max_pixels: int = 16_000_000

    def decode(self, number: int, value: Any) -> Any:
        """Image `number` of a request as an RGB PIL image. RequestError names it; nothing is ever fetched."""
        from PIL import Image, UnidentifiedImageError

        kind, text = _split(number, value)
        if kind not in FORMATS:
            raise RequestError(f"image {number}: content type {kind!r}, allowed are {', '.join(FORMATS)}")
        if len(text) > self.max_bytes * 4 // 3 + 4:
            raise RequestError(f"image {number}: larger than {self.max_bytes} bytes")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RequestError(f"image {number}: not valid base64 ({error})") from error
        try:
            # Opening reads the header only, so a decompression bomb is refused before its pixels exist.
            image = Image.open(io.BytesIO(data), formats=[FORMATS[kind]])
            if image.width * image.height > self.max_pixels:
                raise RequestError(
                    f"image {number}: {image.width} x {image.height} pixels, at most {self.max_pixels} are allowed"
                )
            return image.convert("RGB")
        except RequestError:
            raise
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise RequestError(f"image {number}: cannot be decoded as {kind}") from error


def _split(number: int, value: Any) -> tuple[str, str]:
    if isinstance(value, str):
        found = _DATA_URL.match(value)
        if not found:
            raise RequestError(
                f"image {number}: expected a data URL (data:image/png;base64,...); remote addresses are not fetched"
            )
        return found[1].lower(), value[found.end() :]
    if isinstance(value, dict) and isinstance(value.get("base64"), str) and isinstance(value.get("content_type"), str):
        return value["content_type"].lower(), value["base64"]
    raise RequestError(f"image {number}: expected a data URL or an object with content_type and base64")
