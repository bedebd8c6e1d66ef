"""Sums per record, and figures from sums: one function for the point estimate and for every bootstrap resample.

Every figure is a ratio of sums over questions, so that a resample of records is a matrix product: weights [B, R]
times sums [R, M]. The expected calibration error uses 15 equal bins of the chosen option's probability (Guo et al.
2017).
"""

import numpy as np

from clefquant.verify.metrics import CONFIDENT_MARGIN, NEAR_TIE_MARGIN, BoolArray, Measures, Side
from clefquant.verify.segments import FloatArray, IntArray

ECE_BINS = 15

#: Figure to (sum above, count below). Means run over the questions where the measure is defined.
RATIOS: dict[str, tuple[str, str]] = {
    "agreement": ("agree", "questions"),
    "agreement_clear": ("agree_clear", "clear"),
    "kl": ("kl", "finite"),
    "tv": ("tv", "finite"),
    "max_dp": ("max_dp", "finite"),
    "score_change": ("score_change", "scores"),
    "confident_flip_rate": ("confident_flips", "confident"),
    "accuracy_reference": ("correct_reference", "gold"),
    "accuracy": ("correct", "gold"),
    "nll_reference": ("nll_reference", "gold_finite"),
    "nll": ("nll", "gold_finite"),
    "brier_reference": ("brier_reference", "gold_finite"),
    "brier": ("brier", "gold_finite"),
}
#: Figure to (figure, figure taken from it).
DIFFERENCES = {
    "accuracy_change": ("accuracy", "accuracy_reference"),
    "nll_change": ("nll", "nll_reference"),
    "brier_change": ("brier", "brier_reference"),
    "ece_change": ("ece", "ece_reference"),
}


def columns(m: Measures) -> dict[str, FloatArray]:
    """Per-question summands [Q] by name; questions with one option are zero everywhere."""
    finite = m.reference.finite & m.candidate.finite & m.counted
    gold = m.has_gold & m.counted
    gold_finite = gold & finite
    clear = m.counted & ~(m.margin < NEAR_TIE_MARGIN)
    confident = m.counted & (m.margin > CONFIDENT_MARGIN)
    found: dict[str, BoolArray | FloatArray] = {
        "questions": m.counted,
        "one_option": ~m.counted,
        "finite": finite,
        "nan": m.counted & ~m.candidate.finite,
        "nan_reference": m.counted & ~m.reference.finite,
        "agree": m.agree & m.counted,
        "clear": clear,
        "agree_clear": m.agree & clear,
        "near_ties": m.counted & ~clear,
        "confident": confident,
        "confident_flips": confident & ~m.agree,
        "kl": _where(finite, m.kl),
        "tv": _where(finite, m.tv),
        "max_dp": _where(finite, m.max_dp),
        "scores": finite & ~np.isnan(m.score_change),
        "score_change": _where(finite & ~np.isnan(m.score_change), m.score_change),
        "gold": gold,
        "gold_finite": gold_finite,
        **_side_columns(m.reference, "_reference", gold, gold_finite),
        **_side_columns(m.candidate, "", gold, gold_finite),
    }
    return {name: values.astype(np.float64) for name, values in found.items()}


def _where(mask: BoolArray, values: FloatArray) -> FloatArray:
    return np.where(mask, values, 0.0)


def _side_columns(side: Side, suffix: str, gold: BoolArray, gold_finite: BoolArray) -> dict[str, FloatArray]:
    found = {
        f"correct{suffix}": (side.correct & gold).astype(np.float64),
        f"nll{suffix}": _where(gold_finite, side.nll),
        f"brier{suffix}": _where(gold_finite, side.brier),
    }
    bins = confidence_bins(side.confidence)
    for number in range(ECE_BINS):
        inside = gold_finite & (bins == number)
        # mean confidence minus accuracy, times the bin's share: only its sum over the bin is needed
        found[f"gap{suffix}_{number}"] = _where(inside, side.confidence - side.correct)
    return found


def confidence_bins(confidence: FloatArray) -> IntArray:
    """Number of the equal-width bin of each probability; 1.0 belongs to the last, NaN to the first."""
    return np.minimum((np.nan_to_num(confidence) * ECE_BINS).astype(np.int64), ECE_BINS - 1)


def per_record(found: dict[str, FloatArray], record: IntArray) -> tuple[list[str], FloatArray]:
    """Column names [M] and their sums per record [R, M]. ``record``: number of each question's record [Q], from 0."""
    names = list(found)
    count = int(np.max(record)) + 1 if len(record) else 0
    return names, np.stack([np.bincount(record, found[name], count) for name in names], axis=1)


def figures(names: list[str], sums: FloatArray) -> dict[str, FloatArray]:
    """Every ratio, calibration error and difference from sums [..., M]; NaN where nothing was counted."""
    at = {name: sums[..., index] for index, name in enumerate(names)}
    result: dict[str, FloatArray] = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for figure, (above, below) in RATIOS.items():
            result[figure] = at[above] / at[below]
        for suffix in ("_reference", ""):
            gaps = np.sum([np.abs(at[f"gap{suffix}_{number}"]) for number in range(ECE_BINS)], axis=0)
            result[f"ece{suffix}"] = gaps / at["gold_finite"]
        for figure, (after, before) in DIFFERENCES.items():
            result[figure] = result[after] - result[before]
    return result
