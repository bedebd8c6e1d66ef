"""Records of every kind, reproducible: types, states, instructions, option counts, scripts."""

import random
from typing import Any

WORDS = ["order", "refund", "invoice", "late", "down", "café", "東京", "парк", "🙂", "{json}", '"quoted"', "tab\t"]


def mixed_records(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """SystemOne bodies of 1 to 5 questions with 1 to 40 options each, at most 4,096 tokens with nano's tokenizer."""
    draw = random.Random(seed)
    return [
        {
            "model": f"m{number}",
            "state": _state(draw),
            "questions": {f"q{i}.{draw.randrange(100)}": _question(draw) for i in range(draw.randint(1, 5))},
        }
        for number in range(count)
    ]


def _text(draw: random.Random, longest: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))


def _state(draw: random.Random) -> Any:
    return draw.choice(
        [
            lambda: _text(draw, 40), lambda: {"text": _text(draw, 30), "n": draw.random(), "deep": [{"a": None}]},
            lambda: [_text(draw, 5), 1, None], lambda: None, lambda: "", lambda: 0, lambda: False,
        ]
    )()  # fmt: skip


def _question(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(["noul", "choice", "score"])
    question: dict[str, Any] = {"type": kind}
    instructions = draw.choice([_text(draw, 12), {"ask": _text(draw, 4)}, [_text(draw, 3)], None, "", "missing"])
    if instructions != "missing":
        question["instructions"] = instructions
    described = [lambda: _text(draw, 5), lambda: None, lambda: {"means": _text(draw, 3)}]
    if kind == "choice":
        count = draw.choices([1, 2, 3, 10, 40], [10, 20, 20, 10, 1])[0]
        names = draw.sample([str(i) for i in range(50)] + [f"team {i}" for i in range(20)], count)
        question["criteria"] = {name: draw.choice(described)() for name in names}
    elif kind == "score":
        question["criteria"] = [draw.choice(described)() for _ in range(draw.randint(2, 10))]
    elif draw.random() < 0.5:
        question["criteria"] = {side: draw.choice(described)() for side in draw.sample(["true", "false"], 1)}
    return question
