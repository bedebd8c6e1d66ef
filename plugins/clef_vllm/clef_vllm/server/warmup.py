"""What is asked before the server calls itself ready: one record of every shape that makes kernels compile."""

import base64
import io
from typing import Any

_NOUL = {"type": "noul", "instructions": "Did something happen?"}
_SCORE = {"type": "score", "criteria": ["nothing", "something", "a lot"]}


def warm_up_records(images: int, max_length: int) -> list[dict[str, Any]]:
    """Short, many options, longer, as long as prompts get, and an image where images are served; each twice."""
    # Options of about 35 tokens at most: a schema has to fit, whatever --max-model-len is.
    options = {f"option_{i}": f"The {i}th of many" for i in range(max(2, min(77, max_length // 64)))}
    records: list[dict[str, Any]] = [
        {"state": "Nothing happened.", "questions": {"noul": _NOUL}},
        {"state": "Nothing happened.", "questions": {"choice": {"type": "choice", "criteria": options}}},
        {"state": "Nothing happened. " * 300, "questions": {"noul": _NOUL, "score": _SCORE}},
        {"state": "Nothing happened. " * (max_length // 2), "questions": {"noul": _NOUL}},
    ]
    if images:
        records.append({"state": "", "questions": {"noul": _NOUL}, "images": [_image()]})
    # Once more: the second time is what requests will see, and a fault of the first is not hidden behind it.
    return [{"model": "warm-up", **record} for record in [*records, *records]]


def _image() -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (256, 256), (128, 128, 128)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
