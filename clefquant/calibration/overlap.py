"""The leakage guard: what two records share, whatever their questions, spelling or wrapping.

A record's *content* is its pictures and videos when it has any (each by the sha256 of its pixels), else its state in
canonical form: NFKC, case folded, runs of white space as one space, object keys sorted, and objects or lists that only
wrap one value unwrapped (``{"text": "Hi"}`` is ``"hi"``). A record whose state says nothing is told by its questions
too.
"""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from clefquant.release.artefact import canonical_json

KEY_CHARACTERS = 32


def content_keys(record: Mapping[str, Any], pixel_hashes: Sequence[str]) -> tuple[str, ...]:
    """Keys of what a record is about, 32 hex characters each; two records that share one overlap."""
    if pixel_hashes:
        return tuple(dict.fromkeys(_key("media", pixels) for pixels in pixel_hashes))
    state = canonical_state(record["state"])
    if state in ("", None) or state == [] or state == {}:
        return (_key("record", canonical_json([state, canonical_state(record["questions"])])),)
    return (_key("state", state if isinstance(state, str) else canonical_json(state)),)


def canonical_state(value: Any) -> Any:
    """A state in the form that is compared."""
    if isinstance(value, str):
        return " ".join(unicodedata.normalize("NFKC", value).casefold().split())
    if isinstance(value, Mapping):
        if len(value) == 1:
            return canonical_state(next(iter(value.values())))
        return {str(key): canonical_state(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return canonical_state(value[0]) if len(value) == 1 else [canonical_state(item) for item in value]
    return value


def _key(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind}\x1f{text}".encode()).hexdigest()[:KEY_CHARACTERS]
