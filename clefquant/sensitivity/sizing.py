"""How a budget counts: what each unit takes in each format, as integers, and what a sum of them is in the budget's own
unit.

    bytes, bits, fraction, kl    bytes of the unit's stored tensors
    time, milliseconds           nanoseconds per 1,000 tokens of its matrix products, from a cost table
"""

from collections.abc import Mapping
from dataclasses import dataclass

from clefquant.errors import InputError
from clefquant.recipes.formats import BF16
from clefquant.sensitivity.budget import Budget
from clefquant.sensitivity.cost import Cost
from clefquant.sensitivity.table import SensitivityTable

_NANOSECONDS = 10**6  # in a millisecond


@dataclass(frozen=True)
class Sizing:
    """``sizes``: unit to format to size. ``fixed``: of what no layout changes. ``step``: size of one of the budget's
    unit."""

    sizes: Mapping[str, Mapping[str, int]]
    fixed: int
    step: float

    def limit(self, value: float) -> int:
        """Most that the units may take together under a budget of ``value``."""
        return int(value * self.step + 1e-6) - self.fixed

    def value(self, size: int) -> float:
        """Units of this total ``size`` in the budget's unit."""
        return (size + self.fixed) / self.step


def sizing(table: SensitivityTable, budget: Budget, cost: Cost | None = None) -> Sizing:
    """How ``budget`` counts on ``table``. InputError when it is one of time and ``cost`` is missing or incomplete."""
    if budget.kind in ("time", "milliseconds"):
        return _time(table, budget, cost)
    sizes = {unit.name: unit.bytes for unit in table.units}
    if budget.kind == "bits":
        return Sizing(sizes, 0, sum(unit.weights for unit in table.units) / 8)
    whole = table.total_bytes({unit.name: BF16.name for unit in table.units})
    return Sizing(sizes, table.other_bytes + table.head_bytes, whole if budget.kind == "fraction" else 1)


def _time(table: SensitivityTable, budget: Budget, cost: Cost | None) -> Sizing:
    if cost is None:
        raise InputError(
            f"budget {budget.text} needs a cost table of the GPU that will serve; make one there with `clefquant "
            f"sensitivity --measure-cost --model {table.model} --formats {','.join(table.formats)} --out DIR` and give "
            "it with --cost DIR/cost.json."
        )
    cost.check_covers(table)
    sizes = {
        unit.name: {name: round(cost.units[unit.name][name] * _NANOSECONDS) for name in unit.bytes}
        for unit in table.units
    }
    whole = sum(of_unit[BF16.name] for of_unit in sizes.values())
    return Sizing(sizes, 0, whole if budget.kind == "time" else _NANOSECONDS)
