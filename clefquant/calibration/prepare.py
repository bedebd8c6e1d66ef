"""From a draft to the line of the set: checked, encoded, hashed. A function of the draft alone."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from clefquant.calibration.check import RECORD_KEYS, BadRecord, check_answers, check_record
from clefquant.calibration.draft import Draft
from clefquant.calibration.encoding import Encoder
from clefquant.calibration.overlap import content_keys
from clefquant.calibration.stored import StoredRecord, to_line
from clefquant.release.artefact import sha256_json


@dataclass(frozen=True)
class Limits:
    """How the records of one source are encoded (in tokens)."""

    source: str
    max_length: int
    max_state_tokens: int | None = None
    min_state_tokens: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of one draft: a line of the set, or the reason why it is none.

    ``lost_tokens``: state tokens that did not fit. ``media``: file name in the set to bytes. ``odd``: kinds of oddity.
    """

    place: str
    record_id: str
    fault: str | None = None
    line: str = ""
    sha256: str = ""
    content: tuple[str, ...] = ()
    tokens: int = 0
    lost_tokens: int = 0
    types: dict[str, int] = field(default_factory=dict)
    options: int = 0
    odd: tuple[str, ...] = ()
    media: dict[str, bytes] = field(default_factory=dict)


def prepare(draft: Draft, limits: Limits, encoder: Encoder) -> Outcome:
    """Check, encode and hash one draft. Never raises for what the draft holds."""
    record_id = f"{limits.source}/{draft.record_id}"
    try:
        return _prepare(draft, record_id, limits, encoder)
    except BadRecord as error:
        return Outcome(draft.place, record_id, fault=str(error))
    except UnicodeEncodeError as error:
        shown = f"U+{ord(error.object[error.start]):04X}" if isinstance(error.object, str) else "a byte"
        return Outcome(draft.place, record_id, fault=f"half a character ({shown} alone) that UTF-8 cannot hold")
    except RecursionError:
        return Outcome(draft.place, record_id, fault="nested too deep to be written as JSON")


def _prepare(draft: Draft, record_id: str, limits: Limits, encoder: Encoder) -> Outcome:
    if draft.fault is not None:
        raise BadRecord(draft.fault)
    odd = check_record(draft.record)
    record: dict[str, Any] = {key: draft.record[key] for key in RECORD_KEYS if draft.record.get(key) or key == "state"}
    answers = check_answers(record, draft.answers)
    record_id.encode()
    opened, media, pixel_hashes = record, {}, []
    if record.get("images") or record.get("videos"):
        from clefquant.calibration.media import open_media

        found = open_media(record, draft.base)
        record, opened, media, pixel_hashes = found.stored, found.opened, found.files, found.pixel_hashes
    sha256 = _hash(record)  # refuses what is no JSON, which content_keys would trip over
    content = content_keys(record, pixel_hashes)
    if limits.min_state_tokens and (have := encoder.state_tokens(record["state"])) < limits.min_state_tokens:
        raise BadRecord(f"the state has {have} tokens, this source asks for {limits.min_state_tokens} at least")
    encoded, lost_tokens = encoder.encode(
        opened, record_id, max_length=limits.max_length, max_state_tokens=limits.max_state_tokens
    )
    stored = StoredRecord(record_id, draft.group or limits.source, limits.source, record, answers, encoded, content)
    line = to_line(stored)
    line.encode()
    return Outcome(
        draft.place,
        record_id,
        line=line,
        sha256=sha256,
        content=content,
        tokens=stored.tokens,
        lost_tokens=lost_tokens,
        types=dict(Counter(question["type"] for question in record["questions"].values())),
        options=sum(len(question.option_ids) for question in encoded.questions),
        odd=tuple(odd),
        media=media,
    )


def _hash(record: dict[str, Any]) -> str:
    try:
        return sha256_json(record)
    except (TypeError, ValueError) as error:
        if isinstance(error, UnicodeEncodeError):
            raise
        raise BadRecord(f"it cannot be written as JSON: {error}") from error
