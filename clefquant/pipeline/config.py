"""The configuration of ``clefquant run``: typed, documented, refused with the line when it is wrong."""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clefquant.errors import InputError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SetConfig(_Section):
    """A set to build."""

    mixture: str = Field(
        description="Mixture file, relative to this file or to the working directory, or a bundled name."
    )
    seed: int = Field(0, description="Seed of everything drawn at random in the set.")


class PlanConfig(_Section):
    """Which formats to choose from, under which budget, and on which records."""

    selection: SetConfig = Field(description="Records that score units and choose a layout; apart from the evaluation.")
    formats: tuple[str, ...] = Field(("fp8", "nvfp4", "mxfp4"), description="Formats a unit may get, besides bf16.")
    budget: str = Field(
        description="Bytes of the release (10.3GB), bits a weight (5.2bits), a fraction (0.6x) or kl=0.002."
    )
    pin: dict[str, str] = Field(default_factory=dict, description="Unit name or pattern to the format it must have.")
    forbid: tuple[str, ...] = Field((), description="Formats no unit may have; bf16 may be among them.")
    candidates: int = Field(12, ge=1, description="Layouts near the budget to build and measure.")


class VerifyConfig(_Section):
    """How the release is compared with its source."""

    gate: str | None = Field(None, description="YAML of limits; a figure outside them ends the run with exit code 1.")


class RunConfig(_Section):
    """Everything ``clefquant run`` needs. Exactly one of ``scheme``, ``layout`` and ``plan`` says how units are
    stored.
    """

    model: str = Field(description="Release folder, Hub id, or nano.")
    base_model: str | None = Field(None, description="Hub id the card names as base, when model is a folder.")
    out: str = Field(description="Folder of the run; every stage writes into a folder of its own below it.")
    calibration: SetConfig
    evaluation: SetConfig = Field(description="Records the report is made of; they take no part in any choice.")
    scheme: str | None = Field(None, description="One format for every unit.")
    layout: str | None = Field(None, description="A layout file: a format for each unit.")
    algorithm: str = Field("rtn", description="How weights are rounded: rtn or gptq.")
    plan: PlanConfig | None = Field(None, description="Sweep every unit's sensitivity and plan a layout.")
    tables: Literal["bf16", "int8"] = Field("bf16", description="How the embedding and lm_head tables are stored.")
    verify: VerifyConfig = Field(default_factory=lambda: VerifyConfig.model_validate({}))

    @model_validator(mode="after")
    def _one_way_to_store_units(self) -> "RunConfig":
        given = [name for name in ("scheme", "layout", "plan") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of scheme, layout and plan; found {', '.join(given) or 'none'}")
        return self


def read_config(path: Path) -> RunConfig:
    """Read and check a configuration; InputError names the field and its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no configuration at {path}; see configs/ for examples.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    try:
        node = yaml.compose(text)
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(value, dict):
        raise InputError(
            f"{path} holds a {type(value).__name__}; a configuration is a mapping with model, out, calibration, …"
        )
    try:
        return RunConfig.model_validate(value)
    except ValidationError as error:
        faults = [f"{path}:{_line(node, fault['loc'])}: {_say(fault)}" for fault in error.errors()]
        raise InputError("\n".join(faults)) from None


def resolve(name: str, config_file: Path) -> Path | str:
    """A path named in a configuration: beside the file first, then from the working directory; a bundled name stays
    a name.
    """
    for candidate in (config_file.parent / name, Path(name)):
        if candidate.exists():
            return candidate
    return name


def _say(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _line(node: Any, location: tuple[Any, ...]) -> int:
    """Line of the deepest part of ``location`` that the document has."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line
