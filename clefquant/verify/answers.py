"""Option logits of every question: in memory, and as a parquet file with its origin in the file's metadata.

One row per question: ``record``, ``question``, ``options`` (list of ids), ``logits`` (list of float32, same order),
and ``error`` when a backend gave no logits (they are then NaN). Further list columns hold the same questions answered
another way (``logits_other_batching``, ``logits_one_at_a_time``; null where they were not asked for).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from clefquant.errors import InputError
from clefquant.release.artefact import new_file

KIND = "option logits"
SCHEMA_VERSION = 1
_METADATA = b"clefquant"

Key = tuple[str, str]


class Answer(NamedTuple):
    """One question of one record: logits [options] float32 in the order of ``options``."""

    record: str
    question: str
    options: tuple[str, ...]
    logits: npt.NDArray[np.float32]
    error: str | None = None

    @property
    def key(self) -> Key:
        """What a question is joined by, with its option ids."""
        return self.record, self.question


@dataclass(frozen=True)
class AnswerFile:
    """A parquet of answers. ``head``: its origin; ``variants``: the same questions asked another way, by column
    name."""

    head: dict[str, Any]
    answers: list[Answer]
    variants: dict[str, list[Answer]]


def failed(record: str, question: str, options: Sequence[str], error: str) -> Answer:
    """An answer a backend did not give: NaN for every option, with the reason."""
    return Answer(record, question, tuple(options), np.full(len(options), np.nan, np.float32), error)


def write_answers(
    path: Path,
    answers: Sequence[Answer],
    head: Mapping[str, Any],
    variants: Mapping[str, Iterable[Answer]] | None = None,
) -> None:
    """Write the file whole or not at all. ``variants``: answers to some of the same questions, by column name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = pa.list_(pa.float32())
    columns: dict[str, Any] = {
        "record": pa.array([answer.record for answer in answers], pa.string()),
        "question": pa.array([answer.question for answer in answers], pa.string()),
        "options": pa.array([list(answer.options) for answer in answers], pa.list_(pa.string())),
        "logits": pa.array([answer.logits.tolist() for answer in answers], floats),
        "error": pa.array([answer.error for answer in answers], pa.string()),
    }
    for name, rows in (variants or {}).items():
        found = {row.key: row.logits.tolist() for row in rows}
        columns[name] = pa.array([found.get(answer.key) for answer in answers], floats)
    meta = json.dumps({"kind": KIND, "schema_version": SCHEMA_VERSION, **head}, sort_keys=True)
    table = pa.table(columns).replace_schema_metadata({_METADATA: meta.encode()})
    with new_file(path) as work:
        pq.write_table(table, work, compression="zstd")


def read_answers(path: Path) -> AnswerFile:
    """Read what :func:`write_answers` wrote. InputError for another file or a newer schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; expected the parquet of reference answers that `verify` writes."
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} cannot be read as parquet: {error}") from error
    head = json.loads((table.schema.metadata or {}).get(_METADATA, b"{}"))
    if head.get("kind") != KIND:
        raise InputError(f"{path} holds no {KIND}; give a release or the reference-*.parquet of an earlier `verify`.")
    if not 1 <= head.get("schema_version", 0) <= SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema_version {head.get('schema_version')}, this clefquant reads up to {SCHEMA_VERSION}. "
            "Update clefquant."
        )
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    answers = [
        Answer(record, question, tuple(options), np.asarray(logits, np.float32), error)
        for record, question, options, logits, error in zip(
            *(columns[name] for name in ("record", "question", "options", "logits", "error")), strict=True
        )
    ]
    variants = {
        name: [
            answer._replace(logits=np.asarray(logits, np.float32))
            for answer, logits in zip(answers, values, strict=True)
            if logits is not None
        ]
        for name, values in columns.items()
        if name.startswith("logits_")
    }
    return AnswerFile(head, answers, variants)
