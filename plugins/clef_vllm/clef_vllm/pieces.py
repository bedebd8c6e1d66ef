"""Prompt pieces tokenized once: the release tokenizes a schema line by line, and schemas repeat between requests.

A tokenizer that remembers pieces gives the same tokens as one that does not, for any encoder that tokenizes pieces one
by one. Least recently used pieces go first; the bound is in characters, because a piece may be a whole state.
"""

from array import array
from collections import OrderedDict
from typing import Any, NamedTuple

MAX_CHARACTERS = 8 * 2**20
LONGEST_PIECE = 2**13  # longer texts are states, which do not come again


class Tokens(NamedTuple):
    input_ids: list[int]


class PieceTokenizer:
    """`tokenizer(text, add_special_tokens=False)` with a memory of at most `max_characters`. Not thread-safe."""

    def __init__(self, tokenizer: Any, max_characters: int = MAX_CHARACTERS) -> None:
        self.tokenizer = tokenizer
        self.max_characters = max_characters
        self.characters = self.hits = self.misses = 0
        self._known: OrderedDict[str, array[int]] = OrderedDict()

    def __call__(self, text: str, add_special_tokens: bool = False) -> Tokens:
        """Token ids of `text`, in a list of the caller's own (the release extends the first it gets)."""
        known = self._known.get(text)
        if known is not None:
            self.hits += 1
            self._known.move_to_end(text)
            return Tokens(known.tolist())
        self.misses += 1
        ids: list[int] = self.tokenizer(text, add_special_tokens=add_special_tokens).input_ids
        if len(text) <= LONGEST_PIECE:
            self._remember(text, ids)
        return Tokens(ids)

    def _remember(self, text: str, ids: list[int]) -> None:
        self._known[text] = array("i", ids)
        self.characters += len(text)
        while self.characters > self.max_characters and len(self._known) > 1:
            forgotten, _ = self._known.popitem(last=False)
            self.characters -= len(forgotten)
