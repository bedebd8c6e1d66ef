"""Layouts other people's methods would choose, at a given size: what a plan has to beat."""

import random
from collections.abc import Mapping, Sequence

from clefquant.sensitivity.table import SensitivityTable

#: Unit to format to what it takes.
Sizes = Mapping[str, Mapping[str, int]]


def published_greedy(
    table: SensitivityTable, max_size: int, low: str = "nvfp4", high: str = "fp8", sizes: Sizes | None = None
) -> dict[str, str] | None:
    """Everything in ``high``, units switched to ``low`` in order of damage per parameter until the size fits.

    The method of the published mixed release (KL of the unit alone over its parameters). ``sizes``: bytes unless
    given. None when a unit lacks one of the two formats or everything in ``low`` is too large.
    """
    losses = table.losses()
    if any(not {low, high} <= set(options) for options in losses.values()):
        return None
    order = sorted(table.units, key=lambda unit: losses[unit.name][low] / unit.weights)
    return _switched(sizes or _bytes(table), [unit.name for unit in order], max_size, low, high)


def first_units(
    table: SensitivityTable, max_unit_bytes: int, kind: str | None = None, low: str = "nvfp4", high: str = "fp8"
) -> dict[str, str] | None:
    """Everything in ``high``, the first units (of ``kind``, or of all) switched to ``low`` until the size fits."""
    order = [unit.name for unit in table.units if kind in (None, unit.kind)]
    return _switched(_bytes(table), order, max_unit_bytes, low, high)


def random_layouts(
    table: SensitivityTable, max_unit_bytes: int, formats: Sequence[str], count: int, seed: int
) -> list[dict[str, str]]:
    """Layouts drawn at random that fill the size: units in random order get random formats, then the largest that
    still fits."""
    losses, sizes, generator, found = table.losses(), _bytes(table), random.Random(seed), []
    for _ in range(count):
        units = {unit.name: min(_able(losses, unit.name, formats), key=unit.bytes.__getitem__) for unit in table.units}
        for unit in generator.sample(table.units, len(table.units)):
            room = max_unit_bytes - _size(sizes, units) + unit.bytes[units[unit.name]]
            fitting = [name for name in _able(losses, unit.name, formats) if unit.bytes[name] <= room]
            if fitting:
                units[unit.name] = generator.choice(fitting)
        for unit in generator.sample(table.units, len(table.units)):
            room = max_unit_bytes - _size(sizes, units) + unit.bytes[units[unit.name]]
            fitting = [name for name in _able(losses, unit.name, formats) if unit.bytes[name] <= room]
            units[unit.name] = max([units[unit.name], *fitting], key=unit.bytes.__getitem__)
        found.append(units)
    return found


def _able(losses: dict[str, dict[str, float]], unit: str, formats: Sequence[str]) -> list[str]:
    return [name for name in formats if name in losses[unit]]


def _switched(sizes: Sizes, order: Sequence[str], limit: int, low: str, high: str) -> dict[str, str] | None:
    units = dict.fromkeys(sizes, high)
    for name in order:
        if _size(sizes, units) <= limit:
            break
        units[name] = low
    return units if _size(sizes, units) <= limit else None


def _bytes(table: SensitivityTable) -> Sizes:
    return {unit.name: unit.bytes for unit in table.units}


def _size(sizes: Sizes, units: Mapping[str, str]) -> int:
    return sum(sizes[name][fmt] for name, fmt in units.items())
