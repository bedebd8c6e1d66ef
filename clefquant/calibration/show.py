"""A record as the model sees it: the prompt decoded token by token, with instructions and options marked."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.text import Text

from clefquant.calibration.stored import StoredRecord, StoredSet

STYLES = {"": "", "instruction": "bold cyan", "option": "green", "gold": "bold black on green"}
MEDIA_TOKENS_SHOWN = 4


class Part(NamedTuple):
    """A run of prompt tokens. ``role``: empty, ``instruction``, ``option``, or ``gold`` (the right option)."""

    text: str
    role: str
    label: str
    tokens: int


def show_record(stored_set: StoredSet, number: int) -> Text:
    """Record ``number`` (from 1) of a set as Rich text. InputError when there is none."""
    record = stored_set.record(number)
    text = Text()
    text.append(
        f"{record.record_id}  {record.tokens:,} tokens, group {record.group}, source {record.source}\n\n", "bold"
    )
    for part in parts(record, stored_set.encoder.tokenizer.tokenizer):
        if part.label:
            text.append(f"⟦{part.label}⟧", "dim")
        text.append(part.text, STYLES[part.role])
    text.append("\n\n")
    for name, answer in record.answers.items():
        text.append(f"gold  {name} = {answer}\n", "green")
    return text


def parts(record: StoredRecord, tokenizer: Any) -> Iterator[Part]:
    """The prompt in order, cut where a span starts or ends; together they are the whole prompt."""
    ids, done = record.encoded.input_ids, 0
    for start, end, role, label in _spans(record):
        if start > done:
            yield Part(_decode(tokenizer, ids[done:start]), "", "", start - done)
        yield Part(_decode(tokenizer, ids[start:end]), role, label, end - start)
        done = end
    yield Part(_decode(tokenizer, ids[done:]), "", "", len(ids) - done)


def _spans(record: StoredRecord) -> Iterator[tuple[int, int, str, str]]:
    for question in record.encoded.questions:
        yield (*question.question_span, "instruction", question.question_id)
        gold = record.answers.get(question.question_id)
        for (start, end), option in zip(question.option_spans, question.option_ids, strict=True):
            yield start, end, "gold" if option == gold else "option", option


def _decode(tokenizer: Any, ids: tuple[int, ...]) -> str:
    """Text of tokens; a run of one and the same token (an image's places) is shortened."""
    pieces: list[str] = []
    start = 0
    while start < len(ids):
        end = start
        while end < len(ids) and ids[end] == ids[start]:
            end += 1
        if end - start > MEDIA_TOKENS_SHOWN:
            pieces.append(f"{tokenizer.decode([ids[start]])}×{end - start}")
            start = end
            continue
        run = start
        while end < len(ids) and not _repeats(ids, end):
            end += 1
        pieces.append(tokenizer.decode(list(ids[run:end]), clean_up_tokenization_spaces=False))
        start = end
    return "".join(pieces)


def _repeats(ids: tuple[int, ...], place: int) -> bool:
    run = ids[place : place + MEDIA_TOKENS_SHOWN + 1]
    return len(run) > MEDIA_TOKENS_SHOWN and len(set(run)) == 1
