"""The text of vocabulary rows, read from ``tokenizer.json`` alone."""

import json
from pathlib import Path


def token_texts(folder: Path, rows: list[int]) -> list[str]:
    """Text of each row; ``row N`` when the tokenizer has no such token."""
    try:
        value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = value["model"]["vocab"]
        added = {entry["id"]: entry["content"] for entry in value.get("added_tokens") or []}
    except (OSError, ValueError, KeyError, TypeError):
        return [f"row {row}" for row in rows]
    pairs = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((entry[0], at) for at, entry in enumerate(vocabulary))
    )
    wanted = set(rows)
    names = {at: _decode(token) for token, at in pairs if at in wanted}
    names.update({at: added[at] for at in wanted if at in added})
    return [names.get(row, f"row {row}") for row in rows]


def _decode(token: str) -> str:
    """Undo the byte-to-character map of byte-level BPE; other tokens are shown as they are."""
    table = _byte_of_character()
    if not all(character in table for character in token):
        return token
    return bytes(table[character] for character in token).decode("utf-8", errors="replace")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's map: printable bytes stand for themselves, the others are shifted past 255."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + at): b for at, b in enumerate(hidden)}
