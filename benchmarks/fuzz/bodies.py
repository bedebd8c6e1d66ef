"""Bodies of requests against the server, with a stand-in for the engine: every answer but a fault of the server."""

import base64
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from values import JSON, TEXT, damaged

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins/clef_vllm/tests"))

KINDS = (
    "application/json", "application/x-ndjson", "application/jsonl", "application/x+json; charset=utf-16", "text/plain",
    "", ";", "application/json, application/json",
)  # fmt: skip
PATHS = ("/v1/systemone", "/client/v4/accounts/a/ai/run/@cf/cloudflare/clef")


def png(width: int, height: int) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


TEXTS = {
    "model": "m", "state": {"text": ["late", None, 1.5]}, "return": ["logits"],
    "questions": {
        "late": {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "yes", "false": None}},
        "team": {"type": "choice", "instructions": {"who": 1}, "criteria": {"b": "money", "a": None, "": 3}},
        "urgency": {"type": "score", "criteria": ["low", {"x": 1}, "high"]},
    },
}  # fmt: skip
MEDIA = {**TEXTS, "images": [png(40, 30)], "videos": [{"frames": [png(40, 30)] * 2, "fps": 2}]}
IMAGES = st.builds(png, st.integers(1, 80), st.sampled_from((1, 2, 40, 600)))
CUT = st.builds(lambda text, end: text[:end], IMAGES, st.integers(0, 200))
WORDS = st.sampled_from(("\ud800", "noul", "choice", "score", "logits", "word " * 5000))


def encoded() -> st.SearchStrategy[bytes]:
    """One record, a batch or lines, damaged, in UTF-8 or not; or any bytes."""
    record = damaged(MEDIA, other=JSON | IMAGES | CUT | WORDS) | damaged(TEXTS, other=JSON | WORDS)
    batch = (st.lists(record, max_size=3) | JSON).map(lambda inner: {"requests": inner})
    whole = record | record | batch | JSON
    text = whole.map(json.dumps) | whole.map(lambda value: json.dumps(value, ensure_ascii=False))
    text |= st.lists(whole.map(json.dumps) | TEXT, max_size=4).map("\n".join)
    utf8, utf16 = (text.map(lambda value, name=name: value.encode(name, "surrogatepass")) for name in ("utf8", "utf16"))
    return utf8 | utf8 | utf8 | utf16 | st.binary(max_size=40)


def prepare(folder: Path) -> tuple[st.SearchStrategy[Any], Callable[[Any], None]]:
    from clef_vllm.server.app import make_app
    from fastapi.testclient import TestClient
    from nano import make_release
    from serving import FakeBackend, fake_service

    backend = FakeBackend(make_release(folder / "nano"), 4096)
    clients = []
    for options in ({}, {"hosted_rules": False, "limits": "videos=2,levels=none,questions=none,body_mib=1"}):
        client = TestClient(make_app(fake_service(backend, **options), lambda: None, ()), raise_server_exceptions=False)
        client.__enter__()
        while client.get("/health").status_code != 200:
            pass
        clients.append(client)

    def check(given: tuple[bytes, str, str, int]) -> None:
        body, kind, path, client = given
        answer = clients[client].post(path, content=body, headers={"content-type": kind})
        assert answer.status_code < 500, f"{answer.status_code}: {answer.text[:300]}"
        lines = answer.text.splitlines() if "ndjson" in answer.headers["content-type"] else [answer.text]
        assert all('"api_error"' not in line and json.loads(line) for line in lines), answer.text[:300]

    kinds = st.sampled_from(KINDS[:1] * 6 + KINDS)
    return st.tuples(encoded(), kinds, st.sampled_from(PATHS), st.integers(0, 1)), check
