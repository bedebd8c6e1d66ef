"""What the input statistics say to people: dead inputs, outlying tokens, and headroom on other data."""

from collections.abc import Mapping

from clefquant.quantize.statistics import InputStatistics

#: A largest value this many times that of the median token stretches a shared scale for few tokens.
OUTLYING = 20.0


def headroom(
    calibration: Mapping[str, InputStatistics], other: Mapping[str, InputStatistics]
) -> dict[str, float | None]:
    """Largest input of ``other`` over that of ``calibration``, by linear; above 1 a static input scale saturates.

    None for a linear that saw only zeros in calibration: there is nothing to compare with.
    """
    return {name: other[name].amax / seen.amax if seen.amax else None for name, seen in calibration.items()}


def remarks(statistics: Mapping[str, InputStatistics], ratios: Mapping[str, float | None] | None = None) -> list[str]:
    """Sentences worth showing, none when there is nothing to say."""
    found = []
    if dead := [name for name, value in statistics.items() if value.amax == 0]:
        found.append(
            f"{len(dead)} linears saw only zeros in calibration, first {dead[0]}; their input scale is a guess."
        )
    spread = {name: value.amax / value.token_p50 for name, value in statistics.items() if value.token_p50}
    if outlying := {name: ratio for name, ratio in spread.items() if ratio > OUTLYING}:
        worst = max(outlying, key=lambda name: outlying[name])
        found.append(
            f"{len(outlying)} linears have tokens far above the rest, worst {worst}: "
            f"its largest input is {outlying[worst]:.0f} times that of the median token."
        )
    if ratios and (above := {name: ratio for name, ratio in ratios.items() if ratio and ratio > 1}):
        worst = max(above, key=lambda name: above[name])
        found.append(
            f"{len(above)} of {len(ratios)} linears get larger inputs on the other set than in calibration, worst "
            f"{worst}: {above[worst]:.2f} times. Static input scales (nvfp4) saturate there; calibrate on more records."
        )
    return found
