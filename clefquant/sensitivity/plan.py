"""From a table and a budget to a layout: the exact optimum of the predicted loss, under constraints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations

from clefquant.errors import InputError
from clefquant.recipes.formats import BF16, find_format
from clefquant.sensitivity.budget import Budget, parse_budget
from clefquant.sensitivity.cost import Cost
from clefquant.sensitivity.knapsack import Option, Options, least_loss, least_size
from clefquant.sensitivity.metrics import mean_of_sums
from clefquant.sensitivity.sizing import Sizing, sizing
from clefquant.sensitivity.table import SensitivityTable


@dataclass(frozen=True)
class Constraints:
    """``pin``: unit name or pattern (``layers.*.mlp``) to the one format it must have; ``forbid``: formats nobody may
    have; ``max_formats``: how many formats beside bf16 may be in use."""

    pin: Mapping[str, str] | None = None
    forbid: Sequence[str] = ()
    max_formats: int | None = None


@dataclass(frozen=True)
class Plan:
    """A layout with what the table predicts of it. ``total_bytes``: weights of the release, head included;
    ``predicted_kl``: sum of the units' mean KL, with its standard error over records."""

    units: dict[str, str]
    total_bytes: int
    predicted_kl: float
    predicted_error: float | None
    budget: str


NO_CONSTRAINTS = Constraints()


def plan(
    table: SensitivityTable, budget: str, constraints: Constraints = NO_CONSTRAINTS, cost: Cost | None = None
) -> Plan:
    """The layout with the least predicted KL within ``budget`` (or, for ``kl=``, the smallest one within it).

    ``cost``: what a ``time=`` budget is counted by. Raises InputError when the budget lies outside what is possible
    (both ends are named), a pinned unit is unknown, or a constraint leaves a unit without a format.
    """
    wanted = parse_budget(budget)
    counted = sizing(table, wanted, cost)
    options = planning_options(table, constraints, counted)
    check_within_reach(wanted, counted, options, constraints.max_formats)
    if wanted.kind == "kl":
        chosen = least_size(options, wanted.value, constraints.max_formats)
    else:
        chosen = least_loss(options, counted.limit(wanted.value), constraints.max_formats)
    if chosen is None:
        raise InputError(f"no layout fits {budget} under these constraints; loosen --pin, --forbid or --max-formats.")
    return make_plan(table, dict(zip((unit.name for unit in table.units), chosen, strict=True)), budget)


def make_plan(table: SensitivityTable, units: dict[str, str], budget: str) -> Plan:
    """A given layout as a plan."""
    losses = table.losses()
    mean = mean_of_sums(table.record_losses(units), table.questions)
    predicted = sum(losses[name][fmt] for name, fmt in units.items())
    return Plan(units, table.total_bytes(units), predicted, mean.error, budget)


def planning_options(table: SensitivityTable, constraints: Constraints, counted: Sizing) -> list[Options]:
    """What each unit may become, after constraints and without failed probes; sizes are those of ``counted``."""
    for name in constraints.forbid:
        find_format(name)
    if constraints.max_formats is not None and constraints.max_formats < 1:
        raise InputError(f"--max-formats {constraints.max_formats} leaves nothing to quantize with; allow at least 1.")
    pinned = _pinned(table, constraints.pin or {})
    losses = table.losses()
    found: list[Options] = []
    for unit in table.units:
        able = {name: Option(counted.sizes[unit.name][name], loss) for name, loss in losses[unit.name].items()}
        allowed = {name: option for name, option in able.items() if name not in constraints.forbid}
        if (wanted := pinned.get(unit.name)) is not None:
            if wanted not in able:
                raise InputError(f"{unit.name} cannot be pinned to {wanted}: the table has {', '.join(able)} for it.")
            allowed = {wanted: able[wanted]}
        if not allowed:
            raise InputError(
                f"{unit.name} has no format left (the table has {', '.join(able)}); forbid fewer or pin it."
            )
        found.append(allowed)
    return found


def check_within_reach(budget: Budget, counted: Sizing, options: Sequence[Options], max_formats: int | None) -> None:
    """Refuse a budget below the smallest or above the largest layout, naming both ends in the budget's own unit."""
    low, high = _ends(budget, counted, options, max_formats)
    if not low <= budget.value * (1 + 1e-12):
        problem = "is less than the smallest layout needs"
    elif budget.value > high * (1 + 1e-12):
        problem = "is more than the largest layout takes"
    else:
        return
    raise InputError(f"budget {budget.text} {problem}; possible: {budget.show(low)} to {budget.show(high)}.")


def _ends(budget: Budget, counted: Sizing, options: Sequence[Options], max_formats: int | None) -> tuple[float, float]:
    if budget.kind == "kl":
        return tuple(sum(pick(o.loss for o in unit.values()) for unit in options) for pick in (min, max))  # type: ignore[return-value]
    smallest = min(_smallest_sizes(options, max_formats), default=0)
    largest = sum(max(option.size for option in unit.values()) for unit in options)
    return counted.value(smallest), counted.value(largest)


def _smallest_sizes(options: Sequence[Options], max_formats: int | None) -> list[int]:
    names = sorted({name for unit in options for name in unit} - {BF16.name})
    count = len(names) if max_formats is None else min(max_formats, len(names))
    found = []
    for kept in combinations(names, count):
        allowed = [[o.size for name, o in unit.items() if name in (*kept, BF16.name)] for unit in options]
        if all(allowed):
            found.append(sum(min(sizes) for sizes in allowed))
    return found


def _pinned(table: SensitivityTable, pin: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern, name in pin.items():
        find_format(name)
        matches = [unit.name for unit in table.units if fnmatchcase(unit.name, pattern)]
        if not matches:
            raise InputError(
                f"--pin {pattern}: no such unit; the model has {table.units[0].name} to {table.units[-1].name}."
            )
        found.update(dict.fromkeys(matches, name))
    return found
