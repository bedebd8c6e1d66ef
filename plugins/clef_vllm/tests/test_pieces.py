"""Remembered pieces: the same tokens as without a memory, in lists of the caller's own, within a bound."""

from pathlib import Path
from typing import Any

import pytest
from nano import records

from clef_vllm.pieces import PieceTokenizer
from clef_vllm.requests import Encoder


@pytest.fixture(scope="module")
def encoder(nano: Path) -> Encoder:
    return Encoder(nano, 4096)


def test_encoded_records_are_the_releases(encoder: Encoder) -> None:
    """Twice over, so that the second round comes from memory; also schemas that share pieces, and a cut state."""
    given = [*records(), {**records()[0], "state": "long " * 5000}]
    for record in given * 2:
        expected = encoder.code.encode_record(encoder.tokenizer, record, max_length=4096)
        found = encoder.code.encode_record(encoder.pieces, record, max_length=4096)
        assert found == expected
    assert encoder.pieces.hits > encoder.pieces.misses


def test_a_prompt_that_ends_at_the_limit_is_whole_and_one_token_more_is_cut(nano: Path) -> None:
    record = {"state": "a b c d e f g h", "questions": {"q": {"type": "noul", "instructions": "So?"}}}
    length = len(Encoder(nano, 2048).encode(record).token_ids)
    for limit, cut in ((length + 1, False), (length, False), (length - 1, True)):
        prepared = Encoder(nano, limit).encode(record)
        assert (prepared.truncated, len(prepared.token_ids)) == (cut, min(limit, length))


class Letters:
    """A tokenizer of one token per letter that counts its calls."""

    calls = 0

    def __call__(self, text: str, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        self.calls += 1
        return type("Encoding", (), {"input_ids": [ord(letter) for letter in text]})


def test_every_caller_gets_a_list_of_its_own() -> None:
    pieces = PieceTokenizer(Letters())
    pieces("ab").input_ids.append(7)
    pieces("ab").input_ids.append(7)
    assert pieces("ab").input_ids == [97, 98]


def test_the_memory_is_bounded_and_forgets_the_least_recently_used() -> None:
    letters = Letters()
    pieces = PieceTokenizer(letters, max_characters=6)
    for text in ("aa", "bb", "cc", "aa", "dd"):  # dd pushes out bb
        pieces(text)
    assert (letters.calls, pieces.characters) == (4, 6)
    pieces("aa")
    assert letters.calls == 4
    pieces("bb")
    assert letters.calls == 5
    pieces("x" * 10_000)  # a state: not remembered
    assert pieces.characters == 6
