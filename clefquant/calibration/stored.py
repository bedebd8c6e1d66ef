"""The stored set: records as they were given, tokens as the release encodes them, gold answers apart from the prompt.

A folder of two files. ``set.json`` (the header): kind, schema version, split, seed, tokenizer and release-code hashes, counts
per source, the sha256 of ``records.jsonl``. ``records.jsonl``: one record a line, keys ``id``, ``group``, ``source``,
``record`` (exactly as given: nothing padded, nothing dropped), ``answers`` (question id to option id), ``tokens``, and
``questions`` (id, type number, span of the instruction, spans and ids of the options).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from clefquant.errors import InputError
from clefquant.release.artefact import read_json, sha256_file, sha256_json

KIND = "calibration set"
SCHEMA_VERSION = 1
HEADER_FILE = "set.json"
RECORDS_FILE = "records.jsonl"


@dataclass(frozen=True)
class StoredRecord:
    """One record of a set. ``encoded``: the release's ``EncodedRecord``; ``answers``: gold option id per question id."""

    record_id: str
    group: str
    source: str
    record: dict[str, Any]
    answers: dict[str, str]
    encoded: Any

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return len(self.encoded.input_ids)


@dataclass(frozen=True)
class StoredSet:
    """A set on disk; iterate it to read its records, made with the ``EncodedRecord`` class of ``code``."""

    path: Path
    header: dict[str, Any]
    code: ModuleType

    def __len__(self) -> int:
        """Number of records."""
        return int(self.header["records"])

    def __iter__(self) -> Iterator[StoredRecord]:
        """Read the records in stored order, one at a time."""
        with (self.path / RECORDS_FILE).open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield _stored(json.loads(line), self.code)

    @property
    def tokens(self) -> int:
        """Prompt tokens over all records."""
        return int(self.header["tokens"])

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the header, which holds the sha256 of the records."""
        return sha256_json({key: self.header[key] for key in ("records_sha256", "tokenizer_sha256", "code_sha256")})


def open_set(path: Path, release_folder: Path, code: ModuleType) -> StoredSet:
    """Open a set for a release. InputError when it is missing, damaged, or was encoded by another tokenizer or code."""
    header = read_json(path / HEADER_FILE, KIND, SCHEMA_VERSION)
    if not (path / RECORDS_FILE).is_file() or sha256_file(path / RECORDS_FILE) != header["records_sha256"]:
        raise InputError(f"{path / RECORDS_FILE} is not the file that {HEADER_FILE} describes; build the set again.")
    for key, file in (("tokenizer_sha256", "tokenizer.json"), ("code_sha256", "joint_schema_model.py")):
        if header[key] != sha256_file(release_folder / file):
            raise InputError(
                f"{path} was encoded with another {file} than {release_folder} has; calibrate with this model."
            )
    return StoredSet(path, header, code)


def to_line(stored: StoredRecord) -> str:
    """The line of ``records.jsonl`` for a record."""
    questions = [
        [
            q.question_id,
            q.question_type,
            list(q.question_span),
            [list(span) for span in q.option_spans],
            list(q.option_ids),
        ]
        for q in stored.encoded.questions
    ]
    value = {
        "id": stored.record_id,
        "group": stored.group,
        "source": stored.source,
        "record": stored.record,
        "answers": stored.answers,
        "tokens": list(stored.encoded.input_ids),
        "questions": questions,
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _stored(value: dict[str, Any], code: ModuleType) -> StoredRecord:
    questions = tuple(
        code.EncodedQuestion(
            question_id=name,
            question_type=kind,
            question_span=tuple(span),
            option_spans=tuple(tuple(option) for option in spans),
            option_ids=tuple(ids),
        )
        for name, kind, span, spans, ids in value["questions"]
    )
    encoded = code.EncodedRecord(input_ids=tuple(value["tokens"]), questions=questions, record_id=value["id"])
    return StoredRecord(value["id"], value["group"], value["source"], value["record"], value["answers"], encoded)
