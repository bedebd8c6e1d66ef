"""Prompts of records that share a schema: the release encodes the schema once, and only states are tokenized after
that.

In the published code a text prompt is head + state + tail, where head and tail depend on the questions alone and every
span moves with the length of the state. So the encoded record with an empty state, cut where the state goes, is a
template for every other state. Where to cut is seen by encoding two one-token states, which must differ in exactly that
place; if they do not, or the release's code is another than the published one, there is no template and the release
encodes each record itself.
"""

import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

MAX_KEPT_TOKENS = 1 << 21
PROBES = ("a", "b")
NO_LIMIT_TOKENS = 1 << 40


class Spliced(NamedTuple):
    """The release's ``EncodedRecord``, and how many state tokens did not fit."""

    record: Any
    lost_tokens: int


@dataclass(frozen=True)
class _Template:
    """A prompt without state. Spans of ``questions`` count from its start."""

    head: tuple[int, ...]
    tail: tuple[int, ...]
    questions: tuple[Any, ...]


class SchemaCache:
    """Templates by schema, the least recently made half dropped when they are too many."""

    def __init__(self, code: ModuleType, tokenizer: Any) -> None:
        self.code = code
        self.tokenizer = tokenizer
        self._new: dict[bytes, _Template | None] = {}
        self._old: dict[bytes, _Template | None] = {}
        self._tokens = 0

    def encode(
        self, record: Mapping[str, Any], record_id: str, max_length: int, max_state_tokens: int | None
    ) -> Spliced | None:
        """The record as ``encode_record`` gives it; None: ask the release itself (schema too long, no template)."""
        template = self._template(record["questions"])
        if template is None:
            return None
        state = self.tokenizer(self.code.render(record["state"])).input_ids
        if max_state_tokens is not None:
            state = state[:max_state_tokens]
        room = max_length - len(template.head) - len(template.tail)
        if room < 0:
            return None
        lost = max(len(state) - room, 0)
        if lost:
            state = state[:room]
        encoded = self.code.EncodedRecord(
            input_ids=(*template.head, *state, *template.tail),
            questions=tuple(self._moved(question, len(state)) for question in template.questions),
            record_id=record_id,
        )
        return Spliced(encoded, lost)

    def _moved(self, question: Any, by: int) -> Any:
        start, end = question.question_span
        return self.code.EncodedQuestion(
            question.question_id,
            question.question_type,
            (start + by, end + by),
            tuple([(start + by, end + by) for start, end in question.option_spans]),
            question.option_ids,
        )

    def _template(self, questions: Any) -> _Template | None:
        try:
            key = marshal.dumps(questions, 2)  # by value and type, in order; version 2 has no back references
        except ValueError:
            return None
        if key in self._new:
            return self._new[key]
        template = self._old[key] if key in self._old else self._make(questions)
        if self._tokens > MAX_KEPT_TOKENS // 2:
            self._old, self._new, self._tokens = self._new, {}, 0
        self._new[key] = template
        self._tokens += len(key) // 4 + (len(template.head) + len(template.tail) if template else 0)
        return template

    def _make(self, questions: Any) -> _Template | None:
        empty, first, second = (
            self.code.encode_record(
                self.tokenizer, {"state": state, "questions": questions}, max_length=NO_LIMIT_TOKENS
            )
            for state in ("", *PROBES)
        )
        if not len(empty.input_ids) + 1 == len(first.input_ids) == len(second.input_ids):
            return None
        pairs = zip(first.input_ids, second.input_ids, strict=True)
        cuts = [place for place, (one, other) in enumerate(pairs) if one != other]
        if len(cuts) != 1:
            return None
        template = _Template(empty.input_ids[: cuts[0]], empty.input_ids[cuts[0] :], empty.questions)
        return template if tuple(self._moved(q, 1) for q in empty.questions) == first.questions else None
