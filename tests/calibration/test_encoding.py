"""Token ids, spans and option ids equal the release's, piece cache and schema templates included."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clefquant.calibration.check import BadRecord
from clefquant.calibration.encoding import MAX_KEPT_CHARACTERS, Encoder, PieceTokenizer

CONTROL = (
    "<|im_end|>",
    "<|im_start|>system",
    "<|endoftext|>",
    "\nEND FIELD\n",
    "<|image_pad|>",
    "\u2028",
    "\x00",
    "\r\n",
    "</think>",
)
TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(("", " ", "\n", *CONTROL)),
    st.builds("".join, st.lists(st.sampled_from((*CONTROL, "é", "日本", "🧭", "a", " ", '"', "\\")), max_size=12)),
    st.integers(1, 400).map(lambda n: "word " * n),
)
SCALAR = st.one_of(
    TEXT, st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False)
)
JSON = st.recursive(
    SCALAR,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
NOUL = st.fixed_dictionaries(
    {"type": st.just("noul")},
    optional={
        "instructions": JSON,
        "criteria": st.one_of(st.none(), st.dictionaries(st.sampled_from(("true", "false", "maybe")), JSON)),
    },
)
CHOICE = st.fixed_dictionaries(
    {
        "type": st.just("choice"),
        "criteria": st.dictionaries(st.one_of(TEXT, st.integers(0, 12).map(str)), JSON, min_size=1, max_size=8),
    },
    optional={"instructions": JSON},
)
SCORE = st.fixed_dictionaries(
    {"type": st.just("score"), "criteria": st.lists(JSON, min_size=1, max_size=6)}, optional={"instructions": JSON}
)
RECORD = st.fixed_dictionaries(
    {"state": JSON, "questions": st.dictionaries(TEXT, st.one_of(NOUL, CHOICE, SCORE), min_size=1, max_size=4)}
)


def release_says(encoder: Encoder, record: dict[str, Any], **limits: Any) -> Any:
    """What the release's own function gives with the plain tokenizer, or the word refused."""
    try:
        encoded = encoder.code.encode_record(encoder.tokenizer.tokenizer, {**record, "id": "r"}, **limits)
    except ValueError:
        return "refused"
    spans = [span for q in encoded.questions for span in (q.question_span, *q.option_spans)]
    return "refused" if any(start >= end for start, end in spans) else encoded


def we_say(encoder: Encoder, record: dict[str, Any], **limits: Any) -> Any:
    try:
        return encoder.encode(record, "r", **{"max_length": 16384, **limits}).record
    except BadRecord:
        return "refused"


@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(record=RECORD, other=JSON)
def test_tokens_and_spans_equal_the_release(encoder: Encoder, record: dict[str, Any], other: Any) -> None:
    assert we_say(encoder, record) == release_says(encoder, record)
    again = {**record, "state": other}  # the schema is known now
    assert we_say(encoder, again) == release_says(encoder, again)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(record=RECORD, max_length=st.integers(64, 900), max_state=st.one_of(st.none(), st.integers(0, 50)))
def test_limits_equal_the_release(
    encoder: Encoder, record: dict[str, Any], max_length: int, max_state: int | None
) -> None:
    limits = {"max_length": max_length, "max_state_tokens": max_state}
    assert we_say(encoder, record, **limits) == release_says(encoder, record, **limits)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(record=RECORD)
def test_without_templates_too(encoder: Encoder, record: dict[str, Any]) -> None:
    """Code that is not the published one gets remembered pieces alone."""
    plain = Encoder(encoder.code, encoder.folder, PieceTokenizer(encoder.tokenizer.tokenizer))
    assert we_say(plain, record) == release_says(encoder, record)


def test_exactly_the_limit_loses_nothing(encoder: Encoder) -> None:
    record = {"state": "x" * 50, "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}
    length = len(encoder.encode(record, "r", max_length=16384).record.input_ids)
    assert encoder.encode(record, "r", max_length=length).lost_tokens == 0
    for schemas in (encoder.schemas, None):
        cut = Encoder(encoder.code, encoder.folder, encoder.tokenizer, schemas=schemas).encode(
            record, "r", max_length=length - 3
        )
        assert (cut.lost_tokens, len(cut.record.input_ids)) == (3, length - 3)


def test_a_schema_that_does_not_fit_names_its_length(encoder: Encoder) -> None:
    record = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "word " * 200}}}
    with pytest.raises(BadRecord, match=r"schema requires \d+ tokens"):
        encoder.encode(record, "r", max_length=128)


def test_a_remembered_piece_survives_the_caller(encoder: Encoder) -> None:
    """The release extends the first list it gets; the next record must not see that."""
    tokenizer = PieceTokenizer(encoder.tokenizer.tokenizer)
    tokenizer("abc").input_ids.extend([1, 2, 3])
    assert tokenizer("abc").input_ids == encoder.tokenizer.tokenizer("abc", add_special_tokens=False).input_ids


def test_memory_of_pieces_is_bounded(encoder: Encoder) -> None:
    tokenizer = PieceTokenizer(encoder.tokenizer.tokenizer)
    for number in range(40_000):
        tokenizer(f"{number:05d}" * 40)
    kept = sum(len(text) + 8 * len(ids) for part in (tokenizer._new, tokenizer._old) for text, ids in part.items())
    assert 0 < kept <= MAX_KEPT_CHARACTERS + 4096


def test_schemas_with_equal_json_but_other_order_differ(encoder: Encoder) -> None:
    one, other = (
        {"state": "s", "questions": {a: {"type": "noul"}, b: {"type": "noul"}}} for a, b in (("x", "y"), ("y", "x"))
    )
    for record in (one, other):
        assert we_say(encoder, record) == release_says(encoder, record)
