"""The layout survives a round trip, and whatever is wrong with one is refused without an exception."""

from types import SimpleNamespace
from typing import Any

import pytest

from clef_vllm import schema_layout
from clef_vllm.layout import parse_layout

GOOD = [[1, [-20, -15], [[-14, -12], [-11, -9]]], [0, [-8, -6], [[-5, -4], [-3, 0]]]]


def test_round_trip_counts_from_the_end() -> None:
    questions = [
        SimpleNamespace(question_type=1, question_span=(3, 8), option_spans=((9, 11), (12, 14))),
        SimpleNamespace(question_type=0, question_span=(15, 17), option_spans=((18, 19), (20, 23))),
    ]
    layout = schema_layout(SimpleNamespace(input_ids=range(23), questions=questions))
    assert layout == GOOD
    schema = parse_layout(layout, 23)
    assert schema is not None
    assert schema.question_spans.tolist() == [[3, 8], [15, 17]]
    assert schema.option_spans.tolist() == [[9, 11], [12, 14], [18, 19], [20, 23]]
    assert schema.option_counts.tolist() == [2, 2]
    assert schema.types.tolist() == [1, 0]


def test_expanded_placeholders_in_front_move_the_spans() -> None:
    schema = parse_layout(GOOD, 123)
    assert schema is not None
    assert schema.option_spans.tolist()[0] == [109, 111]


@pytest.mark.parametrize(
    "layout",
    [
        None, 7, "text", [], {}, [[]], [[1]], [[1, [-3, -2]]], [[1, [-3, -2], []]], [[1, [-3, -2], None]],
        [[3, [-3, -2], [[-2, -1]]]], [[-1, [-3, -2], [[-2, -1]]]], [[1, [-2, -2], [[-2, -1]]]],
        [[1, [-3, -2], [[-1, -2]]]], [[1, [-30, -2], [[-2, -1]]]], [[1, [-3, -2], [[-2, 1]]]],
        [[1, [-3, -2], [[-2, -1, 0]]]], [[1, [-3], [[-2, -1]]]], [[1, ["a", "b"], [[-2, -1]]]],
        [[1, [-3, -2], [[-2, None]]]], [[1, [-3, -2], [[-2, 10**30]]]], [[1, [-3, -2], [[-2, -1], [-1]]]],
        [[[1, 2], [-3, -2], [[-2, -1]]]], [[1, [-3, -2], 5]], [[float("nan"), [-3, -2], [[-2, -1]]]],
    ],
)  # fmt: skip
def test_malformed_layouts_are_none(layout: Any) -> None:
    assert parse_layout(layout, 23) is None
