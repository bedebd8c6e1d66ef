"""Requests: what is refused before encoding, and how one becomes an engine prompt.

Encoding and answer formatting are the release's own code (imported from its folder), so token ids, rounding, order and
tie-breaking are the release's by construction. Images are the one difference: vLLM expands their placeholders itself,
so the encoder is given a processor that leaves them unexpanded, and a token budget reduced by what they will add.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clef_vllm.layout import schema_layout
from clef_vllm.media import Media, Unexpanded, Video, read_videos
from clef_vllm.pieces import PieceTokenizer
from clef_vllm.release import Release

# Imported for types alone: the server answers /health before torch is loaded.
if TYPE_CHECKING:
    import torch

TYPES = ("noul", "choice", "score")


class RequestError(ValueError):
    """The client's fault; the message begins with the question id where there is one."""


@dataclass(frozen=True)
class Limits:
    """None switches a limit off. The defaults are the server's; the offline class limits nothing."""

    questions: int | None = 64
    options: int | None = 255
    levels: int | None = 10
    images: int | None = 4
    videos: int | None = 0
    # The hosted service's rules about ids, instructions and the keys of a noul; without them the release's own code
    # decides, and only what it would misread is refused.
    hosted_rules: bool = True


UNLIMITED = Limits(None, None, None, None, None, hosted_rules=False)
QUESTION_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class Prepared(NamedTuple):
    token_ids: list[int]  # placeholders of images and videos unexpanded
    images: list[Any]  # PIL images
    videos: list[Video]
    layout: list[Any]
    options: list[tuple[str, tuple[str, ...]]]  # question id and its option ids, in the order of the logits
    truncated: bool  # the state was cut to fit


def check_request(request: Any, limits: Limits = UNLIMITED, need_model: bool = True) -> None:
    """Raise RequestError for anything the encoder would misread or trip over."""
    if not isinstance(request, Mapping):
        raise RequestError(f"the request must be an object, got {type(request).__name__}")
    if need_model and not isinstance(request.get("model"), str):
        raise RequestError("model is required and must be a string")
    if "state" not in request:
        raise RequestError("state is required (null is allowed)")
    questions = request.get("questions")
    if not isinstance(questions, Mapping) or not questions:
        raise RequestError("questions must be an object with at least one question")
    if limits.questions is not None and len(questions) > limits.questions:
        raise RequestError(f"{len(questions)} questions, at most {limits.questions} are allowed")
    for name, question in questions.items():
        _check_question(name, question, limits)
    if request.get("videos") and limits.videos == 0:
        raise RequestError("videos are not supported by this server; send frames as images")
    for name, most in (("images", limits.images), ("videos", limits.videos)):
        media = request.get(name)
        if media is not None and not isinstance(media, list):
            raise RequestError(f"{name} must be a list, got {type(media).__name__}")
        if media and most is not None and len(media) > most:
            raise RequestError(f"{len(media)} {name}, at most {most} are allowed")


def _check_question(name: Any, question: Any, limits: Limits) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise RequestError(f"{name!r}: a question id must be a non-empty string without control characters")
    if not isinstance(question, Mapping):
        raise RequestError(f"{name}: a question must be an object, got {type(question).__name__}")
    if limits.hosted_rules:
        _check_hosted_rules(name, question)
    kind, criteria = question.get("type"), question.get("criteria")
    if kind not in TYPES:
        raise RequestError(f"{name}: type must be noul, choice, or score, got {kind!r}")
    if kind == "noul":
        if criteria is not None and not isinstance(criteria, Mapping):
            raise RequestError(f"{name}: criteria of a noul must be an object, got {type(criteria).__name__}")
        return
    wanted, most = (Mapping, limits.options) if kind == "choice" else (list, limits.levels)
    if not isinstance(criteria, wanted):
        shape = "an object of option ids" if kind == "choice" else "a list of levels"
        raise RequestError(f"{name}: criteria of a {kind} must be {shape}, got {type(criteria).__name__}")
    if not criteria:
        raise RequestError(f"{name}: criteria must not be empty")
    if most is not None and len(criteria) > most:
        raise RequestError(f"{name}: {len(criteria)} {'options' if kind == 'choice' else 'levels'}, at most {most}")
    if kind == "score" and limits.levels is not None and len(criteria) < 2:
        raise RequestError(f"{name}: a score needs at least 2 levels")
    if kind == "choice" and not all(isinstance(option, str) and option.isprintable() for option in criteria):
        raise RequestError(f"{name}: option ids must be strings without control characters")


def _check_hosted_rules(name: str, question: Mapping[str, Any]) -> None:
    if not QUESTION_ID.fullmatch(name):
        raise RequestError(f"{name}: a question id has 1 to 100 characters of A-Z, a-z, 0-9, _, . and -")
    instructions, criteria = question.get("instructions"), question.get("criteria")
    if isinstance(instructions, bool | int | float):
        raise RequestError(f"{name}: instructions must be text, an object or a list, got {instructions!r}")
    if question.get("type") == "noul" and isinstance(criteria, Mapping):
        unknown = sorted(set(criteria) - {"true", "false"}, key=str)
        if unknown:
            raise RequestError(f"{name}: criteria of a noul are true and false, got {unknown[0]!r}")


class Encoder:
    """The release's encoder with its tokenizer; not thread-safe, as fast tokenizers are not."""

    def __init__(self, path: str | Path, max_length: int) -> None:
        from transformers import AutoTokenizer

        self.release = Release.open(path)
        self.code = self.release.code()
        self.tokenizer = AutoTokenizer.from_pretrained(self.release.path)
        self.pieces = PieceTokenizer(self.tokenizer)
        self.max_length = max_length
        self.media = Media(self.release.path)

    def encode(self, record: Mapping[str, Any]) -> Prepared:
        """A checked record as an engine prompt. RequestError if its schema alone is too long."""
        images = list(record.get("images") or [])
        try:
            videos = read_videos(record)
            added = [self.media.image_tokens(image) for image in images] + [self.media.video_tokens(v) for v in videos]
        except ValueError as error:
            raise RequestError(str(error)) from error
        budget = self.max_length - sum(added) + len(added)
        processor = Unexpanded(self.tokenizer) if added else None
        encoded = self._encode(record, budget, processor)
        for question in encoded.questions:
            if question.question_span[0] == question.question_span[1]:
                raise RequestError(f"{question.question_id}: the instructions have no tokens; write some text")
        return Prepared(
            token_ids=list(encoded.input_ids),
            images=images,
            videos=videos,
            layout=schema_layout(encoded),
            options=[(question.question_id, question.option_ids) for question in encoded.questions],
            # A prompt that ends exactly at the limit may be whole; one more token of room tells.
            truncated=len(encoded.input_ids) == budget
            and len(self._encode(record, budget + 1, processor).input_ids) > budget,
        )

    def _encode(self, record: Mapping[str, Any], budget: int, processor: Any) -> Any:
        try:
            return self.code.encode_record(self.pieces, record, max_length=budget, processor=processor)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RequestError(str(error)) from error

    def answers(self, record: Mapping[str, Any], prepared: Prepared, logits: "torch.Tensor") -> dict[str, Any]:
        """The release's answers, question by question in request order; logits [N] float32."""
        answers, at = {}, 0
        for name, options in prepared.options:
            probabilities = logits[at : at + len(options)].softmax(-1).tolist()
            at += len(options)
            answer = self.code.systemone_answer(
                record["questions"][name], dict(zip(options, probabilities, strict=True))
            )
            answers[name] = answer
        return answers


def by_question(prepared: Prepared, logits: "torch.Tensor") -> dict[str, dict[str, float]]:
    """A flat result [N] as {question id: {option id: value}}."""
    values, at, result = logits.tolist(), 0, {}
    for name, options in prepared.options:
        result[name] = dict(zip(options, values[at : at + len(options)], strict=True))
        at += len(options)
    return result
