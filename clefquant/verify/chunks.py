"""Answering a set in chunks that are committed one by one, so that a killed run goes on where it stopped.

A chunk is a run of whole batches of the one order that depends on lengths alone, so its numbers are the same whoever
computes it and whenever. Each finished chunk is a file; workers that share the folder may each take a shard of the
chunks.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError
from clefquant.progress import Progress
from clefquant.release.load import LoadedRelease, batches, option_logits
from clefquant.verify.answers import Answer, read_answers, write_answers

CHUNK_TOKENS = 32_768

Shard = tuple[int, int]
"""(number of this worker from 0, number of workers)"""


@dataclass(frozen=True)
class Pass:
    """Records to answer in batches of one size. ``parts``: folder of its finished chunks; its name must stand for
    everything that decides the numbers."""

    parts: Path
    records: Sequence[StoredRecord]
    batch_tokens: int


@dataclass(frozen=True)
class Chunk:
    """Whole batches of a pass, and the file of their answers."""

    path: Path
    records: tuple[StoredRecord, ...]
    batch_tokens: int

    @property
    def tokens(self) -> int:
        """Of its records."""
        return sum(record.tokens for record in self.records)


Runner = Callable[[Sequence[Chunk], Callable[[int], None]], Iterator[tuple[Chunk, list[Answer]]]]
"""Answers chunks in any order; tells its second argument how many tokens are done."""


class Unfinished(InputError):
    """Another worker's chunks are not there yet."""


def plan(records: Sequence[StoredRecord], batch_tokens: int) -> list[list[int]]:
    """Indices of records, chunk by chunk."""
    chunks: list[list[int]] = [[]]
    size = 0
    for batch in batches([record.tokens for record in records], batch_tokens):
        if size >= CHUNK_TOKENS:
            chunks.append([])
            size = 0
        chunks[-1] += batch
        size += sum(records[index].tokens for index in batch)
    return [chunk for chunk in chunks if chunk]


def answer_in_chunks(
    passes: Sequence[Pass], runner: Runner, *, head: dict[str, Any], title: str, shard: Shard, progress: Progress
) -> list[list[Answer]]:
    """Per pass, answers to every question of its records, in their order. ``runner`` runs only if chunks are missing.

    Finished chunks are kept until :func:`discard`. Unfinished when other shards' are missing after ours are done.
    """
    cut = [_chunks(one) for one in passes]
    mine = [
        chunk
        for chunks in cut
        for number, chunk in enumerate(chunks)
        if number % shard[1] == shard[0] and not chunk.path.exists()
    ]
    if mine:
        with progress.task(title, sum(chunk.tokens for chunk in mine), "tok") as task:
            for chunk, found in runner(mine, task.advance):
                write_answers(chunk.path, found, head)
    if missing := [chunk.path for chunks in cut for chunk in chunks if not chunk.path.exists()]:
        raise Unfinished(
            f"{len(missing)} of {sum(map(len, cut))} chunks of {title!r} belong to other shards and are not finished "
            f"in {missing[0].parent}. "
            "When every shard has run, with the same package versions on the same kind of device, run the command once "
            "more without --shard."
        )
    return [_collected(one, chunks) for one, chunks in zip(passes, cut, strict=True)]


def _chunks(one: Pass) -> list[Chunk]:
    return [
        Chunk(one.parts / f"part-{number:05d}.parquet", tuple(one.records[i] for i in indices), one.batch_tokens)
        for number, indices in enumerate(plan(one.records, one.batch_tokens))
    ]


def _collected(one: Pass, chunks: Sequence[Chunk]) -> list[Answer]:
    by_key = {answer.key: answer for chunk in chunks for answer in read_answers(chunk.path).answers}
    return [by_key[record.record_id, q.question_id] for record in one.records for q in record.encoded.questions]


def in_this_process(opener: Callable[[], AbstractContextManager[LoadedRelease]]) -> Runner:
    """A runner with the model that ``opener`` loads."""

    def run(chunks: Sequence[Chunk], advance: Callable[[int], None]) -> Iterator[tuple[Chunk, list[Answer]]]:
        with opener() as loaded:
            for chunk in chunks:
                yield chunk, answer_records(loaded, chunk.records, chunk.batch_tokens, advance)

    return run


def answer_records(
    loaded: LoadedRelease, records: Sequence[StoredRecord], batch_tokens: int, advance: Callable[[int], None]
) -> list[Answer]:
    """Answers to every question of ``records``, batch by batch."""
    found: list[Answer] = []
    for index, questions in option_logits(loaded, [record.encoded for record in records], batch_tokens=batch_tokens):
        record = records[index]
        found += [
            Answer(record.record_id, question.question_id, tuple(question.option_ids), logits.numpy())
            for question, logits in zip(record.encoded.questions, questions, strict=True)
        ]
        advance(record.tokens)
    return found


def discard(folder: Path) -> None:
    """Remove finished chunks once their answers are stored in one file."""
    shutil.rmtree(folder, ignore_errors=True)
