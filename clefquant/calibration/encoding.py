"""Encoding through the release's own ``encode_record``, with the tokens of text pieces kept for the next record.

The release tokenizes a record piece by piece (header lines, instructions, one option, the state) and joins the token
lists. So the tokens of a piece do not depend on its neighbours, and a tokenizer that remembers pieces gives the same
prompt: for records that share a schema only the state is left to tokenize. No rule of the release is repeated here.
"""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from clefquant.calibration.check import BadRecord
from clefquant.calibration.schema_cache import NO_LIMIT_TOKENS, SchemaCache
from clefquant.errors import InputError, PrerequisiteError
from clefquant.release.artefact import sha256_file
from clefquant.release.code import PUBLISHED_SHA256, release_code
from clefquant.release.release import CODE_FILE

MAX_PIECE_CHARACTERS = 4096
MAX_KEPT_CHARACTERS = 8 << 20


class _Tokens(NamedTuple):
    input_ids: list[int]


class PieceTokenizer:
    """A tokenizer that remembers short pieces; stands in for the real one inside ``encode_record``.

    Texts over ``MAX_PIECE_CHARACTERS`` are never kept (they are states). Memory is bounded: when the newer half is full
    it becomes the older half, and pieces used again move to the newer one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # The Rust tokenizer without transformers' wrappers and without offsets: the same ids at a third of the cost.
        self._fast = getattr(tokenizer, "_tokenizer", None) if getattr(tokenizer, "is_fast", False) else None
        tokenizer("", add_special_tokens=False)  # sets truncation, padding and special tokens as every call does
        self._new: dict[str, tuple[int, ...]] = {}
        self._old: dict[str, tuple[int, ...]] = {}
        self._characters = 0

    def __call__(self, text: str, add_special_tokens: bool = False) -> _Tokens:
        """Tokens of ``text``, as a list of its own: the release's encoder extends the first list it gets."""
        if add_special_tokens:
            return _Tokens(list(self.tokenizer(text, add_special_tokens=True).input_ids))
        found = self._new.get(text)
        if found is not None:
            return _Tokens(list(found))
        found = self._old.get(text)
        if found is None:
            ids = self._tokenize(text)
            if len(text) > MAX_PIECE_CHARACTERS:
                return _Tokens(ids)
            found = tuple(ids)
        if self._characters > MAX_KEPT_CHARACTERS // 2:
            self._old, self._new, self._characters = self._new, {}, 0
        self._new[text] = found
        self._characters += len(text) + 8 * len(found)
        return _Tokens(list(found))

    def _tokenize(self, text: str) -> list[int]:
        if self._fast is None:
            return list(self.tokenizer(text, add_special_tokens=False).input_ids)
        return list(self._fast.encode_batch_fast([text], add_special_tokens=False)[0].ids)


class Encoded(NamedTuple):
    """The release's ``EncodedRecord``, and how many state tokens did not fit the longest length."""

    record: Any
    lost_tokens: int


@dataclass
class Encoder:
    """Encodes records for one release.

    ``processor`` is loaded when the first record with media comes; ``schemas`` is there when the code is the published
    one.
    """

    code: ModuleType
    folder: Path
    tokenizer: PieceTokenizer
    processor: Any = None
    schemas: SchemaCache | None = None

    def encode(
        self, record: dict[str, Any], record_id: str, *, max_length: int, max_state_tokens: int | None = None
    ) -> Encoded:
        """Encode a record whose media are opened already (see :mod:`clefquant.calibration.media`).

        BadRecord when the release refuses it; PrerequisiteError when a package that decodes video is missing.
        """
        named = {**record, "id": record_id}
        has_media = bool(record.get("images") or record.get("videos"))
        try:
            if self.schemas is not None and not has_media:
                spliced = self.schemas.encode(record, record_id, max_length, max_state_tokens)
                if spliced is not None:
                    _refuse_empty_spans(spliced.record)
                    return Encoded(*spliced)
            encoded = self._encode(named, max_length, max_state_tokens)
            lost = 0
            if len(encoded.input_ids) == max_length:  # full to the brim: was there more?
                lost = len(self._encode(named, NO_LIMIT_TOKENS, max_state_tokens).input_ids) - max_length
        except ImportError as error:
            raise PrerequisiteError(
                f"{record_id}: a package that decodes video is missing (`pip install torchcodec`): {error}. "
                "Or give the video as a list of frames."
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise BadRecord(f"the release cannot encode it: {error or type(error).__name__}") from error
        _refuse_empty_spans(encoded)
        return Encoded(encoded, lost)

    def state_tokens(self, state: Any) -> int:
        """Length of a state in tokens, uncut."""
        return len(self.tokenizer(self.code.render(state)).input_ids)

    def _encode(self, record: dict[str, Any], max_length: int, max_state_tokens: int | None) -> Any:
        has_media = record.get("images") or record.get("videos")
        return self.code.encode_record(
            self.tokenizer,
            record,
            max_length=max_length,
            max_state_tokens=max_state_tokens,
            processor=self._processor() if has_media else None,
        )

    def _processor(self) -> Any:
        if self.processor is None:
            self.processor = load_processor(self.folder)
        return self.processor


def _refuse_empty_spans(encoded: Any) -> None:
    for question in encoded.questions:
        for start, end in (question.question_span, *question.option_spans):
            if start >= end:
                raise BadRecord(f"{question.question_id}: a text without tokens (the model would answer NaN)")


def load_encoder(folder: Path, code: ModuleType | None = None) -> Encoder:
    """Tokenizer and code of a release folder; loads no weights."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} has no tokenizer that transformers can read: {error}") from error
    code, pieces = code or release_code(folder), PieceTokenizer(tokenizer)
    published = sha256_file(folder / CODE_FILE) == PUBLISHED_SHA256
    return Encoder(code, folder, pieces, schemas=SchemaCache(code, pieces) if published else None)


def load_processor(folder: Path) -> Any:
    """The release's processor for images and videos."""
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(folder)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(
            f"{folder} has no processor that transformers can read, so it takes no images: {error}"
        ) from error
