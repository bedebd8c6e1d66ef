"""Accuracy, calibration error and baselines per group and question type."""

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TYPES = ("noul", "choice", "score")


class Answer(NamedTuple):
    """One answered question: its group, type, gold option's index and the options' probabilities."""

    group: str
    kind: int
    label: int
    probabilities: npt.NDArray[np.float64]


def calibration_error(confidence: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error over equal-width bins of the largest probability."""
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(float((correct[place == b] - confidence[place == b]).sum())) for b in range(bins)]
    return sum(gaps) / max(len(confidence), 1)


def table(answers: list[Answer]) -> list[dict[str, float | int | str]]:
    """Rows per group, per group and type, and over all.

    ``majority``: share of the most frequent right index; ``chance``: mean of 1/options.
    """
    parts: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        for key in ((answer.group, "all"), (answer.group, TYPES[answer.kind]), ("all", "all")):
            parts[key].append(answer)
    rows: list[dict[str, float | int | str]] = []
    for (group, kind), part in sorted(parts.items()):
        confidence = np.array([float(np.max(a.probabilities)) for a in part])
        correct = np.array([int(np.argmax(a.probabilities)) == a.label for a in part])
        gold = np.array([max(float(a.probabilities[a.label]), 1e-9) for a in part])
        common = Counter(a.label for a in part).most_common(1)[0][1]
        rows.append(
            {
                "group": group,
                "type": kind,
                "questions": len(part),
                "accuracy": round(float(correct.mean()), 4),
                "majority": round(common / len(part), 4),
                "chance": round(float(np.mean([1 / len(a.probabilities) for a in part])), 4),
                "nll": round(float(-np.log(gold).mean()), 4),
                "ece": round(calibration_error(confidence, correct), 4),
                "small_margins": round(float(np.mean([_margin(a.probabilities) < 0.2 for a in part])), 4),
            }
        )
    return rows


def _margin(probabilities: npt.NDArray[np.float64]) -> float:
    ordered = np.sort(probabilities)
    return float(ordered[-1] - ordered[-2]) if len(ordered) > 1 else 1.0


def text(rows: list[dict[str, float | int | str]]) -> str:
    """The table as Markdown."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows])
