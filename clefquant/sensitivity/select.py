"""Measured selection: candidates built as joint layouts, the best measured one within the budget chosen, and an
honest figure."""

from collections.abc import Sequence

import numpy as np

from clefquant.errors import CheckFailed
from clefquant.sensitivity.budget import parse_budget
from clefquant.sensitivity.candidates import candidates
from clefquant.sensitivity.cost import Cost
from clefquant.sensitivity.frontier import pareto_frontier
from clefquant.sensitivity.measure import Measurer
from clefquant.sensitivity.metrics import mean_of_sums, mean_over_records
from clefquant.sensitivity.parts import Parts
from clefquant.sensitivity.plan import (
    NO_CONSTRAINTS,
    Constraints,
    Plan,
    make_plan,
    plan,
    planning_options,
)
from clefquant.sensitivity.selection import Candidate, Selection
from clefquant.sensitivity.sizing import sizing
from clefquant.sensitivity.table import Entry, Figure, SensitivityTable

DEFAULT_CANDIDATES = 12
_CLEAR_ERRORS = 2.0


def select(
    measurer: Measurer,
    table: SensitivityTable,
    budget: str,
    parts: Parts,
    constraints: Constraints = NO_CONSTRAINTS,
    *,
    cost: Cost | None = None,
    count: int = DEFAULT_CANDIDATES,
    seed: int = 0,
) -> Selection:
    """Plan, measure up to ``count`` candidates on ``parts.choice``, choose, and measure the choice on
    ``parts.held_out``.

    Chosen is the least measured KL within a size budget, candidates that cannot be told from it included (the least
    predicted of them); for a ``kl=`` ceiling the smallest layout measured within it (when none is,
    :attr:`Selection.within` is false).
    """
    first = plan(table, budget, constraints, cost)
    plans = _candidate_plans(table, first, budget, constraints, cost, count, seed)
    by_bytes = sizing(table, parse_budget("1B"))
    frontier = pareto_frontier(planning_options(table, constraints, by_bytes), constraints.max_formats)
    measured = measurer.measure([p.units for p in plans], parts.choice, "measuring candidates")
    chosen, within = choose(plans, measured, budget)
    layout = plans[chosen].units
    (held_out,) = measurer.measure([layout], parts.held_out, "honest figure")
    (swept,) = measurer.measure([layout], parts.sweep, "additivity")
    swept_ids = [record.record_id for record in measurer.in_order(parts.sweep)]
    return Selection(
        budget=budget,
        chosen=chosen,
        within=within,
        candidates=[
            Candidate(
                units=p.units,
                total_bytes=p.total_bytes,
                predicted_kl=p.predicted_kl,
                predicted_error=p.predicted_error,
                figures=entry.figures,
                failed_logits=entry.failed_logits,
            )
            for p, entry in zip(plans, measured, strict=True)
        ],
        held_out=held_out.figures,
        held_out_groups=held_out.groups,
        residual=additivity_residual(table, layout, swept, swept_ids),
        points=[(point.size + table.other_bytes + table.head_bytes, point.loss) for point in frontier.points],
        point_layouts=[_code(table, point.formats) for point in frontier.points],
        exact=frontier.exact,
    )


def additivity_residual(
    table: SensitivityTable, layout: dict[str, str], swept: Entry, ids: Sequence[str]
) -> Figure | None:
    """Measured minus predicted KL on the very records of the sweep, paired record by record.

    ``ids``: the record of each of ``swept``'s sums; an adaptive sweep deals its records in another order.
    """
    if swept.failed_logits:
        return None
    kl = dict(zip(ids, swept.record_kl, strict=True))
    mean = mean_of_sums(
        np.array([kl[record] for record in table.record_ids]) - table.record_losses(layout), table.questions
    )
    return Figure(value=mean.value, error=mean.error, questions=mean.questions)


def _candidate_plans(
    table: SensitivityTable, first: Plan, budget: str, constraints: Constraints, cost: Cost | None, count: int,
    seed: int,
) -> list[Plan]:  # fmt: skip
    start = tuple(first.units[unit.name] for unit in table.units)
    wanted = parse_budget(budget)
    counted = sizing(table, wanted, cost)
    options = planning_options(table, constraints, counted)
    frontier = pareto_frontier(options, constraints.max_formats)
    if wanted.kind != "kl":
        found = candidates(
            table, options, frontier, start, counted.sizes, counted.limit(wanted.value), count,
            constraints.max_formats, seed,
        )  # fmt: skip
        return [make_plan(table, units, budget) for units in found]
    # the prediction may be off by half or double: sizes on both sides of it are measured
    names = [unit.name for unit in table.units]
    ceiling = wanted.value
    near = [point for point in frontier.points if ceiling / 2 <= point.loss <= 2 * ceiling]
    spread = np.unique(np.linspace(0, max(len(near) - 1, 0), min(len(near), count - 1)).astype(int))
    layouts = {start: None, **{near[index].formats: None for index in spread}}
    return [make_plan(table, dict(zip(names, chosen, strict=True)), budget) for chosen in layouts]


def choose(plans: Sequence[Plan], measured: Sequence[Entry], budget: str) -> tuple[int, bool]:
    """Index of the chosen plan, and whether it keeps a ``kl=`` ceiling (always true for a size).

    Among plans whose measured KL cannot be told from the best one's (paired over records), the least predicted KL
    decides: the sum over units rests on more records and more probes than the last digit of a joint measurement.
    CheckFailed when no plan gives answers at all.
    """
    wanted = parse_budget(budget)
    usable = [index for index, entry in enumerate(measured) if not entry.failed_logits]
    if not usable:
        raise CheckFailed(
            f"none of the {len(plans)} layouts measured gives finite answers; the table lists the units that fail "
            "alone. Forbid their formats with --forbid, or pin these units to bf16 with --pin."
        )
    if wanted.kind == "kl":
        within = [index for index in usable if measured[index].kl <= wanted.value]
        if within:
            return min(within, key=lambda index: (plans[index].total_bytes, measured[index].kl)), True
    best = min(usable, key=lambda index: (measured[index].kl, plans[index].total_bytes))
    tied = [index for index in usable if not _clearly_above(measured[index], measured[best])]
    return min(tied, key=lambda index: (plans[index].predicted_kl, plans[index].total_bytes)), wanted.kind != "kl"


def _clearly_above(entry: Entry, best: Entry) -> bool:
    """Whether an entry's KL exceeds the best one's by more than two standard errors of the difference per record."""
    difference = np.array(entry.record_kl) - np.array(best.record_kl)
    mean = mean_over_records(difference, np.arange(len(difference)))
    return mean.error is not None and mean.value > _CLEAR_ERRORS * mean.error


def _code(table: SensitivityTable, formats: Sequence[str]) -> str:
    """A layout as one character per unit: 0 for bf16, else the place of its format in the table, from 1."""
    return "".join("0" if name not in table.formats else str(1 + table.formats.index(name)) for name in formats)
