"""Numbers behind the plots that no table has: the distribution of KL and the reliability curves."""

from typing import Any

import numpy as np

from clefquant.verify.metrics import Measures, Side

KL_EDGES = tuple(10.0 ** (step / 2) for step in range(-16, 3))
"""Half decades from 1e-8 to 10 nats; smaller values are in the first bin, larger in the last."""
RELIABILITY_BINS = 10


def kl_histogram(m: Measures) -> dict[str, Any]:
    """Questions per half decade of KL: ``edges`` [E], ``counts`` [E + 1]."""
    values = m.kl[m.counted & ~np.isnan(m.kl)]
    places = np.searchsorted(KL_EDGES, values, side="right")
    return {"edges": list(KL_EDGES), "counts": np.bincount(places, minlength=len(KL_EDGES) + 1).tolist()}


def reliability(m: Measures) -> dict[str, list[dict[str, float]]]:
    """Mean confidence, accuracy and count per tenth of confidence, for both sides; empty without gold answers."""
    judged = m.has_gold & m.counted
    return {name: _curve(side, judged) for name, side in (("reference", m.reference), ("candidate", m.candidate))}


def _curve(side: Side, judged: Any) -> list[dict[str, float]]:
    known = judged & side.finite
    bins = np.minimum((np.nan_to_num(side.confidence) * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    return [
        {
            "confidence": float(side.confidence[inside].mean()),
            "accuracy": float(side.correct[inside].mean()),
            "count": int(inside.sum()),
        }
        for number in range(RELIABILITY_BINS)
        if (inside := known & (bins == number)).any()
    ]
