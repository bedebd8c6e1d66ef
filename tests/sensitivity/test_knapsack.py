"""The planner against brute force on seeded random instances."""

import itertools
import math
import random

import pytest

from clefquant.sensitivity.frontier import pareto_frontier
from clefquant.sensitivity.knapsack import Option, Options, least_loss, least_size

FORMATS = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125}
INSTANCES = 500


def instance(rng: random.Random) -> tuple[list[Options], int | None]:
    """Up to six units with sizes over seven orders of magnitude, sometimes repeated, sometimes lacking a format."""
    formats = list(FORMATS)[: rng.randint(2, 4)]
    units: list[Options] = []
    for _ in range(rng.randint(1, 6)):
        if units and rng.random() < 0.3:
            units.append({name: Option(option.size, option.loss * rng.random()) for name, option in units[-1].items()})
            continue
        weights = rng.randint(2, 10 ** rng.randint(2, 9))
        kept = [name for name in formats if name == "bf16" or rng.random() < 0.9]
        loss = {name: 0.0 if name == "bf16" else 10 ** rng.uniform(-9, -1) for name in kept}
        units.append({name: Option(int(weights * FORMATS[name]) + rng.randint(0, 9), loss[name]) for name in kept})
    return units, rng.choice([None, None, 1, 2])


def size(units, chosen) -> int:
    return sum(unit[name].size for unit, name in zip(units, chosen, strict=True))


def loss(units, chosen) -> float:
    return math.fsum(unit[name].loss for unit, name in zip(units, chosen, strict=True))


def every_choice(units, max_formats):
    for chosen in itertools.product(*units):
        if max_formats is None or len(set(chosen) - {"bf16"}) <= max_formats:
            yield chosen


def test_least_loss_least_size_and_frontier_equal_brute_force():
    rng = random.Random(20261201)
    for _ in range(INSTANCES):
        units, max_formats = instance(rng)
        rows = [(size(units, chosen), loss(units, chosen)) for chosen in every_choice(units, max_formats)]
        budget = rng.choice([rng.choice(rows)[0], rng.randint(min(rows)[0] - 5, max(rows)[0])])  # often met exactly
        best = min((lost for weighed, lost in rows if weighed <= budget), default=None)
        chosen = least_loss(units, budget, max_formats)
        assert (chosen is None) == (best is None)
        if chosen is not None:
            assert size(units, chosen) <= budget
            assert loss(units, chosen) == pytest.approx(best, rel=1e-9, abs=1e-15)
            assert max_formats is None or len(set(chosen) - {"bf16"}) <= max_formats

        ceiling = rng.uniform(0, max(lost for _, lost in rows))
        chosen = least_size(units, ceiling, max_formats)
        assert chosen is not None
        assert loss(units, chosen) <= ceiling
        assert size(units, chosen) == min(weighed for weighed, lost in rows if lost <= ceiling)

        expected: list[tuple[int, float]] = []
        for row in sorted(rows):
            if not expected or row[1] < expected[-1][1] * (1 - 1e-12):
                expected.append(row)
        frontier = pareto_frontier(units, max_formats)
        assert frontier.exact
        assert [point.size for point in frontier.points] == [row[0] for row in expected]
        assert [point.loss for point in frontier.points] == pytest.approx([row[1] for row in expected])
        assert [size(units, point.formats) for point in frontier.points] == [point.size for point in frontier.points]


def test_thinned_frontier_holds_real_layouts_and_says_so():
    rng = random.Random(3)
    units = [instance(rng)[0][0] for _ in range(12)]
    exact, thinned = pareto_frontier(units), pareto_frontier(units, max_states=50)
    assert exact.exact
    assert not thinned.exact
    assert 20 < len(thinned.points) <= 51
    for point in thinned.points:
        assert (size(units, point.formats), loss(units, point.formats)) == (point.size, pytest.approx(point.loss))
        assert point.loss >= min(other.loss for other in exact.points if other.size <= point.size) * (1 - 1e-9)


def test_a_27b_sized_plan_takes_a_moment_and_equals_the_frontier():
    rng = random.Random(5)
    units = []
    for layer in range(64):
        for weights in (3 * 17408 * 5120, (14848 if layer % 4 == 3 else 22528) * 5120):
            damage = 10 ** rng.gauss(-4, 0.7)
            losses = {
                "bf16": 0.0,
                "fp8": damage * 0.05 * rng.random(),
                "nvfp4": damage,
                "mxfp4": damage * (1 + rng.random()),
            }
            units.append({name: Option(int(weights * FORMATS[name]), lost) for name, lost in losses.items()})
    frontier = pareto_frontier(units)
    assert frontier.exact
    for point in frontier.points[:: len(frontier.points) // 5]:
        chosen = least_loss(units, point.size)
        assert chosen is not None
        assert loss(units, chosen) == pytest.approx(point.loss, rel=1e-9)


def test_the_solver_is_silent(capfd):
    least_loss([{"bf16": Option(2, 0.0), "fp8": Option(1, 0.1)}], 1)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
