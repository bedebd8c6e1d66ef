"""The stored set: records as they were given, tokens as the release encodes them, gold answers apart from the prompt.

A folder of

- ``set.json`` (the header): kind, schema version, split, seed, tokenizer and release-code hashes, counts per source,
  the sha256 of ``records.jsonl``;
- ``records.jsonl``: one record a line with ``id``, ``group``, ``source``, ``sha256`` (of the record), ``content``
  (hashes of state and media that the leakage guard compares), ``record`` (exactly as given: nothing padded, nothing
  dropped), ``answers`` (question id to option id), ``tokens``, and ``questions`` (id, type number, span of the
  instruction, spans and ids of the options);
- ``media/``: the bytes of images and videos, named by their sha256; a record refers to them as ``{"file": "media/…"}``
  and they are opened and processed anew on reading;
- ``report.json``, ``lengths.png``, ``rejected.jsonl``: how the set was made.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clefquant.errors import InputError
from clefquant.release.artefact import read_json, sha256_file, sha256_json
from clefquant.release.release import CODE_FILE

if TYPE_CHECKING:
    from clefquant.calibration.encoding import Encoder

KIND = "calibration set"
SCHEMA_VERSION = 1
HEADER_FILE = "set.json"
RECORDS_FILE = "records.jsonl"
REPORT_FILE = "report.json"
REJECTED_FILE = "rejected.jsonl"
HISTOGRAM_FILE = "lengths.png"
MEDIA_FOLDER = "media"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class StoredRecord:
    """One record of a set. ``encoded``: the release's ``EncodedRecord``; ``answers``: gold option by question id.

    ``folder``: of the set, when the record refers to media in it.
    """

    record_id: str
    group: str
    source: str
    record: dict[str, Any]
    answers: dict[str, str]
    encoded: Any
    content: tuple[str, ...] = ()
    folder: Path | None = None

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
    release_folder: Path | None = None

    def __len__(self) -> int:
        """Number of records."""
        return int(self.header["records"])

    def __iter__(self) -> Iterator[StoredRecord]:
        """Read the records in stored order, one at a time."""
        for value in read_lines(self.path):
            yield self._read(value)

    def record(self, number: int) -> StoredRecord:
        """Record ``number`` (from 1). InputError when there is none; the media of the others are not opened."""
        if not 1 <= number <= len(self):
            raise InputError(f"{self.path} has records 1 to {len(self)}, got {number}.")
        return self._read(next(islice(read_lines(self.path), number - 1, None)))

    @property
    def tokens(self) -> int:
        """Prompt tokens over all records."""
        return int(self.header["tokens"])

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the header, which holds the sha256 of the records."""
        return sha256_json({key: self.header[key] for key in ("records_sha256", "tokenizer_sha256", "code_sha256")})

    @cached_property
    def encoder(self) -> "Encoder":
        """The release's encoder, to process media anew. InputError when the set was opened without a release folder."""
        from clefquant.calibration.encoding import load_encoder

        if self.release_folder is None:
            raise InputError(f"{self.path} holds media; open it with open_set to say whose processor reads them.")
        return load_encoder(self.release_folder, self.code)

    def limits(self, source: str) -> tuple[int, int | None]:
        """``max_length`` and ``max_state_tokens`` that the records of a source were encoded with."""
        about: dict[str, Any] = next((item for item in self.header["sources"] if item["name"] == source), {})
        return int(self.header["max_length"]), about.get("max_state_tokens")

    def _read(self, value: dict[str, Any]) -> StoredRecord:
        stored = to_record(value, self.code)
        if not (stored.record.get("images") or stored.record.get("videos")):
            return stored
        from clefquant.calibration.media import attach_media

        return attach_media(self, stored)


def open_set(path: Path, release_folder: Path, code: ModuleType) -> StoredSet:
    """Open a set for a release. InputError when it is missing, damaged, or was encoded by another tokenizer or code."""
    header = read_header(path)
    if not (path / RECORDS_FILE).is_file() or sha256_file(path / RECORDS_FILE) != header["records_sha256"]:
        raise InputError(f"{path / RECORDS_FILE} is not the file that {HEADER_FILE} describes; build the set again.")
    for key, file in (("tokenizer_sha256", TOKENIZER_FILE), ("code_sha256", CODE_FILE)):
        if header[key] != sha256_file(release_folder / file):
            raise InputError(
                f"{path} was encoded with another {file} than {release_folder} has; calibrate with this model."
            )
    return StoredSet(path, header, code, release_folder)


def read_header(path: Path) -> dict[str, Any]:
    """The header of a set; InputError when ``path`` is none."""
    return read_json(path / HEADER_FILE, KIND, SCHEMA_VERSION)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a set's records as JSON objects, one at a time, without any model's code."""
    with (path / RECORDS_FILE).open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def to_line(stored: StoredRecord) -> str:
    """The line of ``records.jsonl`` for a record, without its end."""
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
        "sha256": sha256_json(stored.record),
        "content": list(stored.content),
        "record": stored.record,
        "answers": stored.answers,
        "tokens": list(stored.encoded.input_ids),
        "questions": questions,
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def to_record(value: dict[str, Any], code: ModuleType) -> StoredRecord:
    """The record of a line. Its media, if any, are not opened."""
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
    content = tuple(value.get("content", ()))
    return StoredRecord(
        value["id"], value["group"], value["source"], value["record"], value["answers"], encoded, content
    )
