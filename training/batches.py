"""Examples to batches of one fixed number of tokens, made by worker processes while the GPU trains."""

import importlib.util
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from clefquant.calibration import public_text
from clefquant.calibration.example import Example, Split
from clefquant.calibration.generators import FAMILIES, generate

LENGTHS = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Padded lengths; the tokens of a batch are a multiple of each, so only the number of rows changes."""
GROUPS = (*FAMILIES, *public_text.DATASETS)
MIXTURE = {
    "routing": 0.205, "invoices": 0.20, "game": 0.20, "logs": 0.27,
    "sms_spam": 0.03, "question_type": 0.025, "film_review": 0.035, "rating": 0.035,
}  # fmt: skip
"""Share of each group among training records. Public text is short and its rows are few: some ten passes in all."""
SHARD = 400

Ints = npt.NDArray[np.int32]


def release_code(path: Path | None = None) -> ModuleType:
    """The release's own ``joint_schema_model.py``: ``path``, or the copy inside the installed ``clef-finetune``."""
    if path is None:
        spec = importlib.util.find_spec("clef_finetune")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("pip install --no-deps clef-finetune==0.1.0, or name a release's folder")
        path = Path(spec.origin).parent / "_vendor" / "joint_schema_model.py"
    found = importlib.util.spec_from_file_location("joint_schema_model", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["joint_schema_model"] = module
    found.loader.exec_module(module)
    return module


class _Encoded(NamedTuple):
    input_ids: list[int]


class MemoTokenizer:
    """What ``encode_record`` needs of a tokenizer; short pieces (schema words, options) are remembered."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(path))
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str, add_special_tokens: bool = False) -> _Encoded:
        """Token ids of ``text`` (special tokens are never added)."""
        ids = self._known.get(text)
        if ids is None:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if len(text) < 80 and len(self._known) < 100_000:
                self._known[text] = ids
        return _Encoded(list(ids))


class Row(NamedTuple):
    """One encoded record: token ids, its group, and per question the type, span, label and option spans."""

    ids: tuple[int, ...]
    group: int
    questions: list[tuple[int, tuple[int, int], int, tuple[tuple[int, int], ...]]]


def encode(code: ModuleType, tokenizer: Any, example: Example) -> Row | None:
    """The record in the release's own encoding; None if it is longer than the longest batch row."""
    try:
        encoded = code.encode_record(tokenizer, example.record, max_length=LENGTHS[-1] + 1)
    except ValueError:
        return None
    if len(encoded.input_ids) > LENGTHS[-1]:
        return None
    questions = [
        (q.question_type, q.question_span, q.option_ids.index(example.answers[q.question_id]), q.option_spans)
        for q in encoded.questions
    ]
    return Row(encoded.input_ids, GROUPS.index(example.group), questions)


def augment(rng: random.Random, row: public_text.Row) -> public_text.Row:
    """A training text with some words left out and now and then in lower case: few real texts, many passes."""
    text = row.text
    if rng.random() < 0.75:
        rate = rng.uniform(0.0, 0.3)
        text = " ".join(word for word in text.split(" ") if rng.random() > rate) or text
    if rng.random() < 0.2:
        text = text.lower()
    elif rng.random() < 0.1:
        text = re.sub(r"[^\w\s]", "", text) or text
    return row._replace(text=text)


def training_examples(seed: int, count: int) -> Iterator[Example]:
    """``count`` examples in the proportions of MIXTURE, fixed by ``seed``."""
    rng = random.Random(f"mixture/{seed}")
    streams = {family: generate(family, "train", count, seed) for family in FAMILIES}
    for group in rng.choices(tuple(MIXTURE), tuple(MIXTURE.values()), k=count):
        if group in streams:
            yield next(streams[group])
        else:
            yield public_text.example_of(rng, group, augment(rng, rng.choice(public_text.rows(group, "train"))))


def held_out_examples(split: Split, count: int, seed: int = 0) -> Iterator[Example]:
    """``count`` examples of every generated family and at most as many texts of every public data set."""
    for family in FAMILIES:
        yield from generate(family, split, count, seed)
    for name in public_text.DATASETS:
        yield from public_text.examples(name, split, min(count, len(public_text.rows(name, split))), seed)


def _ragged(spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    starts: list[int] = []
    for start, end in spans:
        starts.append(len(tokens))
        tokens.extend(range(start, end))
    return tokens, starts


def collate(rows: list[Row], length: int, count: int, pad: int) -> dict[str, Ints]:
    """``count`` rows padded to ``length``; missing rows are fillers without questions. Names as in ``HeadBatch``."""
    ids = np.full((count, length), pad, np.int32)
    lengths = np.ones(count, np.int32)
    columns: dict[str, list[int]] = {
        name: []
        for name in ("question_row", "question_slot", "question_type", "label", "group",
                     "option_question", "option_slot", "option_column")
    }  # fmt: skip
    question_spans: list[tuple[int, int]] = []
    option_spans: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
        lengths[index] = len(row.ids)
        offset, slot = index * length, 0
        for place, (kind, span, label, options) in enumerate(row.questions):
            question = len(columns["label"])
            values = (index, place, kind, label, row.group)
            for name, value in zip(
                ("question_row", "question_slot", "question_type", "label", "group"), values, strict=True
            ):
                columns[name].append(value)
            question_spans.append((span[0] + offset, span[1] + offset))
            for column, (start, end) in enumerate(options):
                columns["option_question"].append(question)
                columns["option_slot"].append(slot)
                columns["option_column"].append(column)
                option_spans.append((start + offset, end + offset))
                slot += 1
    question_tokens, question_starts = _ragged(question_spans)
    option_tokens, option_starts = _ragged(option_spans)
    lists = {**columns, "question_tokens": question_tokens, "question_starts": question_starts,
             "option_tokens": option_tokens, "option_starts": option_starts}  # fmt: skip
    return {"ids": ids, "length": lengths, **{name: np.asarray(values, np.int32) for name, values in lists.items()}}


def batched(rows: Iterable[Row | None], tokens: int, pad: int, *, rest: bool) -> Iterator[dict[str, Ints]]:
    """Full batches as soon as a length has enough rows; with ``rest`` also the incomplete ones at the end."""
    waiting: dict[int, list[Row]] = {length: [] for length in LENGTHS}
    for row in rows:
        if row is None:
            continue
        length = next(length for length in LENGTHS if len(row.ids) <= length)
        waiting[length].append(row)
        if len(waiting[length]) == tokens // length:
            yield collate(waiting[length], length, tokens // length, pad)
            waiting[length] = []
    if rest:
        for length, left in waiting.items():
            if left:
                yield collate(left, length, tokens // length, pad)


def work(
    queue: Any, first: int, step: int, tokenizer_path: Path, code_path: Path | None, tokens: int, pad: int
) -> None:
    """A worker: shards ``first``, ``first + step``, ... for ever, their batches into ``queue``."""
    os.nice(10)  # the training process must never wait for a core
    code, tokenizer = release_code(code_path), MemoTokenizer(tokenizer_path)

    def rows() -> Iterator[Row | None]:
        shard = first
        while True:
            for example in training_examples(shard, SHARD):
                yield encode(code, tokenizer, example)
            shard += step

    for batch in batched(rows(), tokens, pad, rest=False):
        queue.put(batch)
