"""One global scale for the members of a fused group, by rescaling their E4M3 block scales.

    weight = E2M1 value * block scale (E4M3) / global scale (float32 divisor)

Going from a member's divisor g to the common g' multiplies its block scales by g' / g; they are rounded to E4M3
again, which is the only error added (none where the ratio is a power of two and the scale stays normal). The values
themselves stay: a block's values move together by at most 1/16, less than half of any E2M1 step. Of the divisors that
every member could take, the one that adds the least squared error over the group is chosen.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clefquant.export.audit.decode import E2M1, E4M3, E4M3_MAX, nearest_e4m3

_BLOCK_BYTES = 8
_STEPS_PER_OCTAVE = 32
_SHIFTS = range(-6 * _STEPS_PER_OCTAVE, 4 * _STEPS_PER_OCTAVE)
_MAGNITUDES = np.abs(np.nan_to_num(E4M3.astype(np.float64)))
#: Sum of squares of the two E2M1 values of a byte.
_SQUARES = (E2M1[np.arange(256) & 15] ** 2 + E2M1[np.arange(256) >> 4] ** 2).astype(np.float32)


class Member(NamedTuple):
    """``packed`` uint8 [O, I/2], ``scale`` uint8 [O, I/16] (E4M3 bytes), ``divisor``: the stored global scale."""

    name: str
    packed: NDArray[np.uint8]
    scale: NDArray[np.uint8]
    divisor: float


class Rescaled(NamedTuple):
    """New block scales of a member; ``added_error``: norm of the change over norm of the dequantized weight."""

    name: str
    scale: NDArray[np.uint8]
    added_error: float


class Common(NamedTuple):
    """The divisor for all and what becomes of each member."""

    divisor: float
    members: list[Rescaled]


def common_scale(members: Sequence[Member]) -> Common | None:
    """Rescale a group to one divisor; None when some block scale would leave E4M3's range under every candidate."""
    energies = [_energy(member) for member in members]
    steps = [2.0 ** (step / _STEPS_PER_OCTAVE) for step in _SHIFTS]
    candidates = {float(np.float32(member.divisor * step)) for member in members for step in steps}
    best: tuple[float, float] | None = None
    for divisor in sorted(candidates, reverse=True):
        costs = [_cost(m.divisor, energy, divisor) for m, energy in zip(members, energies, strict=True)]
        if any(cost is None for cost in costs):
            continue
        total = sum(cost for cost in costs if cost is not None)
        if best is None or total < best[0]:
            best = (total, divisor)
    if best is None:
        return None
    divisor = best[1]
    return Common(divisor, [_apply(m, energy, divisor) for m, energy in zip(members, energies, strict=True)])


def _energy(member: Member) -> NDArray[np.float64]:
    """Sum of squared E2M1 values of all blocks with a given scale byte, [256]."""
    rows, groups = member.scale.shape
    squares = _SQUARES[member.packed].reshape(rows, groups, _BLOCK_BYTES).sum(2)
    sums = np.bincount(member.scale.ravel(), weights=squares.ravel().astype(np.float64), minlength=256)
    return sums.astype(np.float64, copy=False)


def _table(old: float, new: float) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Exact new scale and nearest E4M3 byte for every old byte."""
    exact = _MAGNITUDES * (new / old)
    return exact, nearest_e4m3(exact)


def _cost(old: float, energy: NDArray[np.float64], new: float) -> float | None:
    exact, nearest = _table(old, new)
    used = energy > 0
    lost = (E4M3[nearest[used]] == 0) & (exact[used] > 0)
    if (exact[used] > E4M3_MAX).any() or lost.any():
        return None
    return float((((_MAGNITUDES[nearest] - exact) / new) ** 2 * energy).sum())


def _apply(member: Member, energy: NDArray[np.float64], new: float) -> Rescaled:
    exact, nearest = _table(member.divisor, new)
    change = float((((_MAGNITUDES[nearest] - exact) / new) ** 2 * energy).sum())
    whole = float(((exact / new) ** 2 * energy).sum())
    return Rescaled(member.name, nearest[member.scale], (change / whole) ** 0.5 if whole else 0.0)
