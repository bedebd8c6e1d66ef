"""The layout: which format each unit has, and what that weighs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from clefquant.errors import InputError
from clefquant.recipes.formats import BF16, Format, find_format
from clefquant.release.artefact import read_json, write_json
from clefquant.release.release import Release
from clefquant.release.units import Linear

KIND = "layout"
SCHEMA_VERSION = 1


class Layout(BaseModel):
    """A format for every unit of a model.

    ``bytes``: of all backbone tensors as they will be stored (tables, vision tower and norms included).
    ``bits_per_weight``: stored bits of the quantizable matrices over their number of weights. ``budget``: what was
    asked for, as the user wrote it. ``measured``: figures of the joint layout, when it was measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = KIND
    schema_version: int = SCHEMA_VERSION
    model: str
    units: dict[str, str]
    bytes: int
    bits_per_weight: float
    budget: str | None = None
    measured: dict[str, Any] | None = None

    def formats(self) -> tuple[str, ...]:
        """The formats in use, most frequent first."""
        names = list(self.units.values())
        return tuple(sorted(set(names), key=lambda name: (-names.count(name), name)))

    def write(self, path: Path) -> None:
        """Write ``layout.json``."""
        write_json(path, self.model_dump())


def make_layout(
    release: Release, units: Mapping[str, str], *, budget: str | None = None, measured: dict[str, Any] | None = None
) -> Layout:
    """A checked layout: InputError on unknown or missing units, unknown formats, and sizes a format cannot store."""
    known = {unit.name for unit in release.units}
    for name in units:
        if name not in known and (unit := name.rpartition(".")[0]) in known:
            raise InputError(
                f"the layout names {name}, a part of {unit}; a unit has one format, because servers fuse its matrices."
            )
    if unknown := sorted(set(units) - known):
        raise InputError(f"the layout names {', '.join(unknown[:3])}, which {release.reference} does not have.")
    if missing := sorted(known - set(units)):
        raise InputError(
            f"the layout leaves out {', '.join(missing[:3])}; every unit needs a format (bf16 to keep it)."
        )
    obstacles = [
        obstacle
        for unit in release.units
        for linear in unit.linears
        if (obstacle := find_format(units[unit.name]).obstacle(linear))
    ]
    if obstacles:
        more = f" (and {len(obstacles) - 1} more)" if len(obstacles) > 1 else ""
        raise InputError(f"{obstacles[0]}{more}; choose another format for it.")
    stored = sum(find_format(units[u.name]).tensor_bytes(linear) for u in release.units for linear in u.linears)
    source = sum(BF16.tensor_bytes(linear) for unit in release.units for linear in unit.linears)
    return Layout(
        model=release.reference,
        units={unit.name: units[unit.name] for unit in release.units},
        bytes=release.backbone_bytes - source + stored,
        bits_per_weight=round(8 * stored / sum(unit.weights for unit in release.units), 4),
        budget=budget,
        measured=measured,
    )


def quantized_linears(release: Release, units: Mapping[str, str]) -> Iterator[tuple[Linear, Format]]:
    """Every linear that ``units`` (unit name to format) does not keep in bf16, with its format, in layer order."""
    for unit in release.units:
        if units[unit.name] != BF16.name:
            fmt = find_format(units[unit.name])
            yield from ((linear, fmt) for linear in unit.linears)


def uniform_layout(release: Release, scheme: str) -> Layout:
    """Every unit in one format."""
    find_format(scheme)
    return make_layout(release, {unit.name: scheme for unit in release.units})


def read_layout(path: Path, release: Release) -> Layout:
    """Read a layout file and check it against ``release``."""
    value = read_json(path, KIND, SCHEMA_VERSION)
    units = value.get("units")
    if not isinstance(units, dict) or not all(isinstance(name, str) for name in units.values()):
        raise InputError(f"{path} has no units (an object from unit name to format).")
    try:
        return make_layout(release, units, budget=value.get("budget"), measured=value.get("measured"))
    except ValidationError as error:
        raise InputError(f"{path}: budget must be text or null, measured an object or null.") from error
