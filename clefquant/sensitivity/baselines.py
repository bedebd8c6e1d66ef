"""Layouts other people's methods would choose, at a given size: what a plan has to beat."""

import random
from collections.abc import Sequence

from clefquant.sensitivity.table import SensitivityTable


def published_greedy(
    table: SensitivityTable, max_unit_bytes: int, low: str = "nvfp4", high: str = "fp8"
) -> dict[str, str] | None:
    """Everything in ``high``, units switched to ``low`` in order of damage per parameter until the size fits.

    The method of the published mixed release (KL of the unit alone over its parameters). None when a unit lacks one
    of the two formats or everything in ``low`` is too large.
    """
    losses = table.losses()
    if any(not {low, high} <= set(options) for options in losses.values()):
        return None
    order = sorted(table.units, key=lambda unit: losses[unit.name][low] / unit.weights)
    return _switched(table, [unit.name for unit in order], max_unit_bytes, low, high)


def first_units(
    table: SensitivityTable, max_unit_bytes: int, kind: str | None = None, low: str = "nvfp4", high: str = "fp8"
) -> dict[str, str] | None:
    """Everything in ``high``, the first units (of ``kind``, or of all) switched to ``low`` until the size fits."""
    return _switched(table, [unit.name for unit in table.units if kind in (None, unit.kind)], max_unit_bytes, low, high)


def random_layouts(
    table: SensitivityTable, max_unit_bytes: int, formats: Sequence[str], count: int, seed: int
) -> list[dict[str, str]]:
    """Layouts drawn at random that fill the size: units in random order get random formats, then the largest that
    still fits."""
    losses, generator, found = table.losses(), random.Random(seed), []
    for _ in range(count):
        units = {unit.name: min(_able(losses, unit.name, formats), key=unit.bytes.__getitem__) for unit in table.units}
        for unit in generator.sample(table.units, len(table.units)):
            room = max_unit_bytes - _size(table, units) + unit.bytes[units[unit.name]]
            fitting = [name for name in _able(losses, unit.name, formats) if unit.bytes[name] <= room]
            if fitting:
                units[unit.name] = generator.choice(fitting)
        for unit in generator.sample(table.units, len(table.units)):
            room = max_unit_bytes - _size(table, units) + unit.bytes[units[unit.name]]
            fitting = [name for name in _able(losses, unit.name, formats) if unit.bytes[name] <= room]
            units[unit.name] = max([units[unit.name], *fitting], key=unit.bytes.__getitem__)
        found.append(units)
    return found


def _able(losses: dict[str, dict[str, float]], unit: str, formats: Sequence[str]) -> list[str]:
    return [name for name in formats if name in losses[unit]]


def _switched(table: SensitivityTable, order: Sequence[str], limit: int, low: str, high: str) -> dict[str, str] | None:
    units = {unit.name: high for unit in table.units}
    for name in order:
        if _size(table, units) <= limit:
            break
        units[name] = low
    return units if _size(table, units) <= limit else None


def _size(table: SensitivityTable, units: dict[str, str]) -> int:
    return sum(unit.bytes[units[unit.name]] for unit in table.units)
