"""What the server takes: the hosted service's limits by default, each of which `--limits name=value,...` changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clef_vllm.requests import Limits, RequestError, check_request

# name: (default, meaning); "none" switches off what is not a size.
NAMES = {
    "questions": (64, "questions of a record"),
    "options": (255, "options of a choice"),
    "levels": (10, "levels of a score"),
    "images": (4, "images of a record; with 0, and no videos, the vision tower is left out"),
    "videos": (0, "videos of a record, as frames"),
    "frames": (64, "frames of a video"),
    "image_mib": (4, "MiB of an image file"),
    "image_mpx": (16, "million pixels of an image"),
    "body_mib": (13, "MiB of a request body"),
    "batch": (256, "records of a batch"),
}
_MAY_BE_OFF = {"questions", "options", "levels"}
_FIELDS = {"model", "state", "questions", "images", "videos", "return"}
_QUESTION_FIELDS = {"type", "instructions", "criteria"}


@dataclass(frozen=True)
class ServerLimits:
    record: Limits = field(default_factory=Limits)
    image_bytes: int = 4 * 2**20
    image_pixels: int = 16_000_000
    body_bytes: int = 13 * 2**20
    batch: int = 256
    frames: int = 64  # of a video
    strict: bool = False  # unknown fields are refused instead of ignored

    @classmethod
    def parse(cls, text: str, hosted_rules: bool = True, strict: bool = False) -> "ServerLimits":
        """From "questions=128,options=none". ValueError names what is not understood."""
        values: dict[str, int | None] = {name: default for name, (default, _) in NAMES.items()}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in NAMES:
                raise ValueError(f"--limits: {name!r} is not one of {', '.join(NAMES)}")
            if value == "none" and name in _MAY_BE_OFF:
                values[name] = None
            elif value.isdecimal() and (int(value) > 0 or name in ("images", "videos")):
                values[name] = int(value)
            else:
                off = " or none" if name in _MAY_BE_OFF else ""
                raise ValueError(f"--limits: {name} takes a whole number above 0{off}, got {value!r}")
        sizes = {name: values[name] or 0 for name in NAMES}
        record = Limits(
            values["questions"], values["options"], values["levels"], sizes["images"], sizes["videos"], hosted_rules
        )
        return cls(
            record, sizes["image_mib"] * 2**20, sizes["image_mpx"] * 10**6, sizes["body_mib"] * 2**20,
            sizes["batch"], sizes["frames"], strict,
        )  # fmt: skip

    def check(self, body: Any) -> bool:
        """Check a record; whether raw logits are wanted. RequestError for anything wrong with it."""
        check_request(body, self.record)
        if self.strict:
            _refuse_unknown(body, _FIELDS, "")
            for name, question in body["questions"].items():
                _refuse_unknown(question, _QUESTION_FIELDS, f"{name}: ")
        wanted = body.get("return") or []
        if not isinstance(wanted, list) or any(part != "logits" for part in wanted):
            raise RequestError(f'return must be a list that holds nothing but "logits", got {wanted!r}')
        return bool(wanted)


def _refuse_unknown(given: Mapping[str, Any], known: set[str], prefix: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise RequestError(f"{prefix}unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
