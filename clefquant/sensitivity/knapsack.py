"""The exact choice: one option per unit, least loss within a size or least size within a loss, solved by HiGHS.

minimize   sum_ui loss_ui x_ui        subject to   sum_i x_ui = 1 for every unit u,  sum_ui size_ui x_ui <= budget,
           x_ui <= y_f for every option of format f,  sum_f y_f <= k,  x, y in {0, 1}

Sizes are integers: reduced by each unit's smallest and by their common divisor, and allowed half a step above the
budget, so that neither floating point nor the solver's tolerance decides what fits.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clefquant.recipes.formats import BF16

_TOLERANCE = 1e-9


class Option(NamedTuple):
    """What a unit takes (bytes, or nanoseconds) and loses in one format."""

    size: int
    loss: float


Options = Mapping[str, Option]


def least_loss(units: Sequence[Options], max_size: int, max_formats: int | None = None) -> list[str] | None:
    """Formats per unit with the least summed loss within ``max_size``; None when nothing fits.

    ``max_formats``: how many formats beside bf16 may be in use.
    """
    base = sum(min(option.size for option in unit.values()) for unit in units)
    if base > max_size:
        return None
    sizes = [[option.size - min(o.size for o in unit.values()) for option in unit.values()] for unit in units]
    step = math.gcd(*(size for row in sizes for size in row)) or 1
    steps = np.array([size // step for row in sizes for size in row], dtype=np.float64)
    losses = np.array([option.loss for unit in units for option in unit.values()])
    largest = max(1.0, *steps.tolist())
    limit = ((max_size - base) // step + 0.5) / largest
    return _solve(
        units, cost=losses / (losses.max(initial=0.0) or 1.0), row=steps / largest, limit=limit, max_formats=max_formats
    )


def least_size(units: Sequence[Options], max_loss: float, max_formats: int | None = None) -> list[str] | None:
    """Formats per unit with the least summed size whose summed loss is at most ``max_loss``; None when nothing is."""
    losses = np.array([option.loss for unit in units for option in unit.values()])
    sizes = np.array([option.size - min(o.size for o in unit.values()) for unit in units for option in unit.values()])
    scale = losses.max(initial=0.0) or 1.0
    limit = max_loss / scale
    for slack in (0.0, 1e-9, 1e-8, 1e-7):  # until rounding does not carry the sum over the ceiling
        chosen = _solve(
            units, cost=sizes / (sizes.max() or 1), row=losses / scale, limit=limit - slack, max_formats=max_formats
        )
        if chosen is None or math.fsum(u[f].loss for u, f in zip(units, chosen, strict=True)) <= max_loss:
            return chosen
    return None


def _solve(
    units: Sequence[Options], *, cost: np.ndarray, row: np.ndarray, limit: float, max_formats: int | None
) -> list[str] | None:
    import highspy

    columns = [(number, name) for number, unit in enumerate(units) for name in unit]
    formats = sorted({name for _, name in columns} - {BF16.name}) if max_formats is not None else []
    count = len(columns) + len(formats)
    rows: list[tuple[float, float, dict[int, float]]] = [(-highspy.kHighsInf, limit, dict(enumerate(row)))]
    for number in range(len(units)):
        rows.append((1.0, 1.0, {column: 1.0 for column, (owner, _) in enumerate(columns) if owner == number}))
    for place, name in enumerate(formats, start=len(columns)):
        of_format = [column for column, (_, used) in enumerate(columns) if used == name]
        rows += [(-highspy.kHighsInf, 0.0, {column: 1.0, place: -1.0}) for column in of_format]
    if formats:
        rows.append((-highspy.kHighsInf, float(max_formats or 0), dict.fromkeys(range(len(columns), count), 1.0)))

    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = count, len(rows)
    model.col_cost_ = np.concatenate([cost, np.zeros(len(formats))])
    model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
    model.row_lower_, model.row_upper_ = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    model.integrality_ = [highspy.HighsVarType.kInteger] * count
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.cumsum([0, *(len(entries) for _, _, entries in rows)])
    model.a_matrix_.index_ = np.array([column for _, _, entries in rows for column in entries])
    model.a_matrix_.value_ = np.array([value for _, _, entries in rows for value in entries.values()])
    solver = _quiet_solver()
    settings = {"threads": 1, "random_seed": 0, "mip_rel_gap": 0.0, "mip_abs_gap": 0.0}
    tolerances = dict.fromkeys(
        ("mip_feasibility_tolerance", "primal_feasibility_tolerance", "dual_feasibility_tolerance"), _TOLERANCE
    )
    for name, value in {**settings, **tolerances}.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    chosen = np.asarray(solver.getSolution().col_value)[: len(columns)]
    return [name for (_, name), value in zip(columns, chosen, strict=True) if value > 0.5]


def _quiet_solver() -> Any:
    """A solver that writes nothing: ``Highs.__init__`` prints a banner to the process's stdout, where ``--json``
    results go."""
    import highspy

    solver = highspy.Highs.__new__(highspy.Highs)
    super(highspy.Highs, solver).__init__()  # without the callbacks, whose set-up prints
    solver.setOptionValue("output_flag", False)
    return solver
