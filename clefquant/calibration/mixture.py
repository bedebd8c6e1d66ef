"""A mixture: the YAML that says which sources a set is made of and how many records each gives.

Published mixtures are data in ``configs/mixtures`` (bundled with the package) and can be named without a path:
``nano``.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from clefquant.calibration.source_config import ENDLESS_KINDS, Config, Source
from clefquant.errors import InputError
from clefquant.release.yaml_text import parse_yaml

BUNDLED = Path(__file__).parent / "mixtures"
DEFAULT_MAX_LENGTH_TOKENS = 16384


class Mixture(Config):
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

    @model_validator(mode="after")
    def _every_source_ends(self) -> "Mixture":
        asked = self.asked()
        endless = [s.name for s in self.sources if s.kind in ENDLESS_KINDS and asked[s.name] is None]
        if endless:
            raise ValueError(f"{', '.join(endless)} never ends by itself; give it a count, or the mixture its records")
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
        value = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
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
