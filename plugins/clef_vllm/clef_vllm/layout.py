"""The schema layout: what a request tells the engine about its questions and options.

    [[type, [start, end], [[start, end], ...]], ...]     one entry per question, one inner pair per option

type is 0 noul, 1 choice, 2 score. Spans count from the end of the prompt (so they are negative and may end at 0):
vLLM expands image placeholders in front of them, which moves every index counted from the start.
"""

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ARCHITECTURE = "ClefForDecision"
# vLLM's name for a task that returns something per request from all prompt tokens. "plugin" would describe us better,
# but model runner V2 (vLLM 0.30 and later) refuses it.
TASK = "token_classify"
EXTRA_KEY = "clef_questions"
# The key of hf_overrides that says where lm_head's int8 rows are kept: "device" or "cpu".
LEXICAL_KEY = "clef_lexical_table"
QUESTION_TYPES = 3

IntArray = NDArray[np.int64]


class Schema(NamedTuple):
    """A parsed layout with spans counted from the start of the prompt: Q questions, N options over all of them."""

    types: IntArray  # [Q]
    question_spans: IntArray  # [Q, 2]
    option_spans: IntArray  # [N, 2], question after question
    option_counts: IntArray  # [Q], sums to N


def schema_layout(encoded: Any) -> list[Any]:
    """The layout of an `EncodedRecord` of the release's `encode_record`, as nested lists of plain ints."""
    end = len(encoded.input_ids)
    return [
        [
            int(question.question_type),
            [int(at) - end for at in question.question_span],
            [[int(start) - end, int(stop) - end] for start, stop in question.option_spans],
        ]
        for question in encoded.questions
    ]


def parse_layout(layout: Any, prompt_len: int) -> Schema | None:
    """Parse and check a layout; None if anything about it is wrong.

    Never raises: it runs inside the engine core, where an exception ends the engine and every request with it.
    """
    try:
        types = np.array([question[0] for question in layout], dtype=np.int64)
        questions = np.array([question[1] for question in layout], dtype=np.int64)
        counts = np.array([len(question[2]) for question in layout], dtype=np.int64)
        options = np.array(list(chain.from_iterable(question[2] for question in layout)), dtype=np.int64)
    except (TypeError, ValueError, IndexError, KeyError, OverflowError):
        return None
    if not len(types) or types.ndim != 1 or questions.shape != (len(types), 2) or options.shape != (counts.sum(), 2):
        return None
    if (types < 0).any() or (types >= QUESTION_TYPES).any() or (counts < 1).any():
        return None
    for spans in (questions, options):
        spans += prompt_len
        if (spans[:, 0] < 0).any() or (spans[:, 0] >= spans[:, 1]).any() or (spans[:, 1] > prompt_len).any():
            return None
    return Schema(types, questions, options, counts)


# An encoded option carries JSON around its text; none of a real vocabulary is shorter than this.
SHORTEST_OPTION = 4


def widest_schema(tokens: int) -> Schema:
    """One question with as many options as fit into a prompt of `tokens` tokens: the most memory a head can need."""
    count = max(1, tokens // SHORTEST_OPTION)
    starts = np.arange(count) * min(SHORTEST_OPTION, tokens)
    options = np.stack([starts, starts + min(SHORTEST_OPTION, tokens)], axis=1)
    return Schema(np.ones(1, dtype=np.int64), np.array([[0, 1]]), options, np.array([count]))
