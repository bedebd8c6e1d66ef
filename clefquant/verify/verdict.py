"""One word and a few sentences for a reader who has a minute.

The levels come from what published quantizations of Clef report: FP8 and mixed NVFP4/FP8 keep 98.8 to 98.9 % of
BF16's answers at a mean KL of 0.0016 to 0.0019; plain NVFP4 keeps 94.3 % at 0.024. "Faithful" asks for the first
kind, "usable with care" for the second. A gate of the user's own replaces them.
"""

from typing import NamedTuple

from clefquant.verify.tables import Row
from clefquant.verify.words import interval, share

FAITHFUL_AGREEMENT, FAITHFUL_KL = 0.985, 0.003
CAREFUL_AGREEMENT, CAREFUL_KL = 0.94, 0.03
#: Confident answers that may change in a faithful release.
FAITHFUL_CONFIDENT = 0.002


class Verdict(NamedTuple):
    """``level``: yes, probably, care or no. ``headline`` answers "may I ship it?"; ``reasons`` are whole sentences."""

    level: str
    headline: str
    reasons: list[str]


def verdict(
    row: Row, noise: list[Row], lost: int, won: int, p_value: float, failed_limits: list[str] | None
) -> Verdict:
    """Judge the row of all questions. ``failed_limits``: None without a gate, else the limits that failed."""
    reasons = [_answers(row), _confident(row), _accuracy(row, lost, won, p_value), _noise(row, noise), _unsound(row)]
    kept = [reason for reason in reasons if reason]
    if failed_limits is not None:
        if failed_limits:
            return Verdict(
                "no",
                f"Do not ship: {_count(len(failed_limits), 'limit')} of your gate failed.",
                [*failed_limits, *kept],
            )
        return Verdict("yes", "Yes, ship it: every limit of your gate is kept.", kept)
    return Verdict(*_level(row, p_value), kept)


def _level(row: Row, p_value: float) -> tuple[str, str]:
    agreement, kl = row["agreement"], row["kl"]
    if row["nan"] or row["nan_reference"] or agreement is None or kl is None:
        return "no", "Do not ship: some questions have no finite answer."
    change = row["accuracy_change"]
    worse = change is not None and change["high"] < 0 and p_value < 0.05
    flips = row["confident_flip_rate"]
    near = agreement["value"] >= FAITHFUL_AGREEMENT and kl["value"] <= FAITHFUL_KL
    near = near and not worse and (flips is None or flips["value"] <= FAITHFUL_CONFIDENT)
    if near and agreement["low"] >= FAITHFUL_AGREEMENT - 0.01 and kl["high"] <= 2 * FAITHFUL_KL:
        return "yes", "Yes, ship it: it answers as BF16 does."
    if near:
        return (
            "probably",
            "Probably yes, but this set is too small or too varied to be sure. Add records and verify again.",
        )
    if agreement["value"] >= CAREFUL_AGREEMENT and kl["value"] <= CAREFUL_KL:
        return "care", "Ship with care: some answers differ from BF16. Read the worst questions below first."
    return "no", "Do not ship as a stand-in for BF16: too many answers differ."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _answers(row: Row) -> str:
    changed = row["flips"]
    text = f"Of {_count(row['questions'], 'answer')}, {row['questions'] - changed:,} stay the same"
    if row["agreement"]:
        text += f" ({share(row['agreement'])} %; 95 % interval {interval(row['agreement'])} %)"
    if changed:
        ties = changed - _clear_flips(row)
        text += f". {changed:,} {'changes' if changed == 1 else 'change'}"
        text += f"; {ties:,} of them {'was' if ties == 1 else 'were'} practically a tie in BF16" if ties else ""
    return text + "."


def _clear_flips(row: Row) -> int:
    clear = row["questions"] - row["near_ties"]
    return round((1 - row["agreement_clear"]["value"]) * clear) if row["agreement_clear"] else 0


def _confident(row: Row) -> str:
    if not row["confident"]:
        return ""
    flips = row["confident_flips"]
    what = "none changes" if not flips else f"{flips:,} {'changes' if flips == 1 else 'change'}"
    return f"Of {_count(row['confident'], 'answer')} that BF16 gives with confidence (a lead above 20 points), {what}."


def _accuracy(row: Row, lost: int, won: int, p_value: float) -> str:
    change = row["accuracy_change"]
    if change is None:
        return "The set has no gold answers, so accuracy is not known."
    before, after = 100 * row["accuracy_reference"]["value"], 100 * row["accuracy"]["value"]
    if not lost and not won:
        return f"Accuracy is {after:.1f} %, as in BF16: no answer became right or wrong."
    span = f"{100 * change['low']:+.1f} to {100 * change['high']:+.1f} points"
    text = f"Accuracy is {after:.1f} %, BF16 has {before:.1f} % ({lost} lost, {won} won; the change lies within {span})"
    if change["low"] <= 0 <= change["high"] or p_value >= 0.05:
        return text + ": no difference that this set can show."
    if change["value"] > 0:
        return text + ". That the release beats BF16 is chance of this set or a fault of it, not a gain to claim."
    return text + ": a real loss."


def _noise(row: Row, noise: list[Row]) -> str:
    rows = [one for one in noise if one["agreement"] and one["kl"]]
    if not rows or row["kl"] is None:
        return ""
    worst = max(rows, key=lambda one: float(one["kl"]["value"]))
    kept, kl = 100 * worst["agreement"]["value"], worst["kl"]["value"]
    text = f"BF16 run again with other batches keeps {kept:.1f} % of its own answers (KL {kl:.2g})"
    if row["kl"]["value"] <= kl:
        return text + "; this release is within that noise."
    return text + f"; this release has KL {row['kl']['value']:.2g}."


def _unsound(row: Row) -> str:
    parts = []
    if row["nan"]:
        parts.append(f"{_count(row['nan'], 'question')} got no finite answer from the release and count as changed")
    if row["nan_reference"]:
        parts.append(f"{_count(row['nan_reference'], 'question')} got no finite answer from BF16 itself")
    if row["one_option"]:
        parts.append(f"{_count(row['one_option'], 'question')} with a single option are left out")
    return "; ".join(parts) + "." if parts else ""
