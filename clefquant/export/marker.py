"""The key in ``joint_head_config.json`` that stops every reader which does not know the int8 tables.

Loaders pass all keys of that file on as keyword arguments, so an unknown one raises a TypeError that names it. The
key is put in and taken out as text: the rest of the file keeps its bytes.
"""

import json
import re

from clefquant.errors import InputError
from clefquant.release.release import HEAD_CONFIG_FILE, MARKER

#: The first clef-vllm that reads int8 tables.
MINIMUM_PLUGIN = "0.1.0"
_WRITTEN = re.compile(rf'"{MARKER}"\s*:\s*"[^"]*"(, |,)?')


def add_marker(text: str) -> str:
    """The configuration with the marker as its first key."""
    value = _parse(text)
    if MARKER in value:
        raise InputError(f"{HEAD_CONFIG_FILE} has {MARKER} already; restore the BF16 tables first.")
    at = text.index("{") + 1
    return f'{text[:at]}"{MARKER}": "{MINIMUM_PLUGIN}"{", " if value else ""}{text[at:]}'


def remove_marker(text: str) -> str:
    """The configuration without the marker; one without it is returned as it is."""
    value = _parse(text)
    shorter = _WRITTEN.sub("", text, count=1)
    value.pop(MARKER, None)
    try:
        same = json.loads(shorter) == value
    except ValueError:  # it was the last of several keys and left a comma behind
        same = False
    return shorter if same else json.dumps(value, indent=2) + "\n"


def _parse(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{HEAD_CONFIG_FILE} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{HEAD_CONFIG_FILE} holds no JSON object.")
    return value
