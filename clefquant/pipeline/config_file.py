"""Reading a configuration: faults are named by field, with the line they stand in."""

import difflib
import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from clefquant.calibration.mixture import load_mixture
from clefquant.errors import InputError
from clefquant.pipeline.config import RunConfig, SetConfig
from clefquant.release.yaml_text import parse_yaml
from clefquant.verify.gates import read_gate

#: Where in the document, and what is wrong there.
Fault = tuple[tuple[int | str, ...], str]


def read_config(path: Path) -> RunConfig:
    """Read and check a configuration and the files it names; InputError names every wrong field and its line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no configuration at {path}; see configs/ for examples.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; a configuration is a YAML file, see configs/.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(value, dict):
        found = "is empty" if value is None else f"holds a {type(value).__name__}"
        raise InputError(f"{path} {found}; a configuration is a mapping with model, out, evaluation, …")
    node = yaml.compose(text)
    try:
        config = RunConfig.model_validate(value)
        faults = _named_files(config, path)
    except ValidationError as error:
        faults = [(tuple(fault["loc"]), _say(fault)) for fault in error.errors()]
    if faults:
        placed = sorted((_line(node, place), message) for place, message in faults)
        raise InputError("\n".join(f"{path}:{line}: {message}" for line, message in placed))
    return config


def resolve(name: str, config_file: Path) -> Path | str:
    """A path named in a configuration: beside the file first, then from the working directory; a bundled name stays
    a name.
    """
    for candidate in (config_file.parent / name, Path(name)):
        if candidate.exists():
            return candidate
    return name


def schema_text() -> str:
    """JSON Schema of a configuration, for editors: ``# yaml-language-server: $schema=…``."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _named_files(config: RunConfig, path: Path) -> list[Fault]:
    """Faults of mixtures, gate and layout that the configuration names."""
    sets: dict[tuple[str, ...], SetConfig | None] = {
        ("calibration",): config.calibration,
        ("evaluation",): config.evaluation,
        ("plan", "selection"): config.plan.selection if config.plan else None,
    }
    faults: list[Fault] = []
    for place, chosen in sets.items():
        try:
            if chosen is not None:
                load_mixture(resolve(chosen.mixture, path))
        except InputError as error:
            faults.append(((*place, "mixture"), f"{'.'.join(place)}.mixture: {error}"))
    try:
        if config.verify.gate is not None:
            read_gate(Path(resolve(config.verify.gate, path)))
    except InputError as error:
        faults.append((("verify", "gate"), f"verify.gate: {error}"))
    if config.layout is not None and not Path(resolve(config.layout, path)).is_file():
        faults.append((("layout",), f"layout: there is no file {config.layout}; write one with `clefquant plan`"))
    return faults


def _say(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        known = _fields(fault["loc"][:-1])
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, 1)
        message = f"there is no such field{f'; did you mean {near[0]}?' if near else ''} (fields: {', '.join(known)})"
    return f"{where}: {message}" if where else message


def _fields(place: tuple[Any, ...]) -> list[str]:
    """Fields of the section at ``place``."""
    section: type[BaseModel] = RunConfig
    for part in place:
        kinds = [*getattr(section.model_fields[part].annotation, "__args__", ()), section.model_fields[part].annotation]
        section = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return list(section.model_fields)


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
