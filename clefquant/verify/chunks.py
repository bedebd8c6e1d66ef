"""Answering a set in chunks that are committed one by one, so that a killed run goes on where it stopped.

A chunk is a run of whole batches of the one order that depends on lengths alone, so its numbers are the same whoever
computes it and whenever. Each finished chunk is a file; workers that share the folder may each take a shard of the
chunks.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError
from clefquant.progress import Progress
from clefquant.release.load import LoadedRelease, batches, option_logits
from clefquant.verify.answers import Answer, read_answers, write_answers

CHUNK_TOKENS = 32_768

Opener = Callable[[], AbstractContextManager[LoadedRelease]]
Shard = tuple[int, int]
"""(number of this worker from 0, number of workers)"""


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
    parts: Path,
    records: Sequence[StoredRecord],
    opener: Opener,
    batch_tokens: int,
    *,
    head: dict[str, Any],
    title: str,
    shard: Shard,
    progress: Progress,
) -> list[Answer]:
    """Answers to every question of ``records``, in their order. ``opener`` loads the model, only if a chunk is missing.

    ``parts``: folder of finished chunks; its name must stand for everything that decides the numbers. It is kept until
    :func:`discard` so that a run killed between two steps repeats neither.
    """
    chunks = plan(records, batch_tokens)
    paths = [parts / f"part-{number:05d}.parquet" for number in range(len(chunks))]
    mine = [number for number in range(len(chunks)) if number % shard[1] == shard[0] and not paths[number].exists()]
    if mine:
        tokens = sum(records[index].tokens for number in mine for index in chunks[number])
        with opener() as loaded, progress.task(title, tokens, "tok") as task:
            for number in mine:
                chosen = [records[index] for index in chunks[number]]
                found: list[Answer] = []
                for index, rows in _run(loaded, chosen, batch_tokens):
                    found += rows
                    task.advance(chosen[index].tokens)
                write_answers(paths[number], found, head)
    if missing := [path for path in paths if not path.exists()]:
        raise Unfinished(
            f"{len(missing)} of {len(paths)} chunks of {title!r} belong to other shards and are not finished "
            f"in {parts}. "
            "When every shard has run, run the command once more without --shard."
        )
    by_key = {answer.key: answer for path in paths for answer in read_answers(path).answers}
    return [by_key[record.record_id, q.question_id] for record in records for q in record.encoded.questions]


def _run(
    loaded: LoadedRelease, records: Sequence[StoredRecord], batch_tokens: int
) -> Iterator[tuple[int, list[Answer]]]:
    for index, questions in option_logits(loaded, [record.encoded for record in records], batch_tokens=batch_tokens):
        record = records[index]
        yield (
            index,
            [
                Answer(record.record_id, question.question_id, tuple(question.option_ids), logits.numpy())
                for question, logits in zip(record.encoded.questions, questions, strict=True)
            ],
        )


def discard(folder: Path) -> None:
    """Remove finished chunks once their answers are stored in one file."""
    shutil.rmtree(folder, ignore_errors=True)
