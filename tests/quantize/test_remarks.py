"""Dead inputs, outlying tokens and missing headroom are said; nothing is said when there is nothing."""

from clefquant.quantize.remarks import headroom, remarks
from clefquant.quantize.statistics import InputStatistics


def seen(amax, p50=1.0):
    return InputStatistics(amax=amax, rms=1.0, token_p50=p50, token_p99=p50, dead_channels=0, tokens=10)


def test_headroom():
    found = headroom({"a": seen(2.0), "b": seen(4.0), "c": seen(0.0)}, {"a": seen(3.0), "b": seen(1.0), "c": seen(1.0)})
    assert found == {"a": 1.5, "b": 0.25, "c": None}


def test_everything_is_said():
    statistics = {"a": seen(2.0), "b": seen(50.0), "c": seen(0.0, p50=0.0)}
    dead, outlying, above = remarks(statistics, {"a": 1.5, "b": 0.25, "c": None})
    assert dead.startswith("1 linears saw only zeros in calibration, first c;")
    assert "worst b: its largest input is 50 times" in outlying
    assert above.startswith("1 of 3 linears")
    assert "worst a: 1.50 times" in above


def test_nothing_to_say():
    assert remarks({"a": seen(2.0)}, {"a": 0.9}) == []
