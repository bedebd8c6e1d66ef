"""Answers of the release's own code in transformers, and how engines' answers are compared with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from nano import load_reference, records

TOLERANCE = 0.02
Probabilities = list[dict[str, dict[str, float]]]


def reference(path: Path, prepare: Callable[[Any], None] | None = None, asked: list[Any] | None = None,
              dtype: torch.dtype = torch.bfloat16) -> Probabilities:  # fmt: skip
    """The release's own code in transformers; `prepare` may change the backbone first."""
    code = load_reference()
    model, processor = code.load_release_model(path, device="cpu", dtype=dtype)
    if prepare:
        prepare(model.language_model)
    results = []
    for record in asked or records():
        encoded = code.encode_record(processor.tokenizer, record, max_length=4096, processor=processor)
        batch = code.collate_records([encoded], processor.tokenizer.pad_token_id, torch.device("cpu"))
        with torch.inference_mode():
            logits = model(batch)[0]
        results.append({
            q.question_id: dict(zip(q.option_ids, values.float().softmax(-1).tolist(), strict=True))
            for q, values in zip(encoded.questions, logits, strict=True)
        })  # fmt: skip
    return results


def largest(found: Probabilities, expected: Probabilities) -> float:
    assert [{q: list(o) for q, o in r.items()} for r in found] == [{q: list(o) for q, o in r.items()} for r in expected]
    return max(abs(f[q][o] - e[q][o]) for f, e in zip(found, expected, strict=True) for q in e for o in e[q])


def average(found: Probabilities, expected: Probabilities) -> float:
    """Mean |Δp| over records, so that the record with 77 options does not outvote the others."""
    values = [[abs(f[q][o] - e[q][o]) for q in e for o in e[q]] for f, e in zip(found, expected, strict=True)]
    return sum(sum(record) / len(record) for record in values) / len(values)


def same_top(found: Probabilities, expected: Probabilities, margin: float = 0.05) -> None:
    """The same first option wherever the reference's two best are further apart than `margin`."""
    for f, e in zip(found, expected, strict=True):
        for question, options in e.items():
            best = sorted(options.values(), reverse=True)
            if len(best) > 1 and best[0] - best[1] > margin:
                assert max(f[question], key=f[question].__getitem__) == max(options, key=options.__getitem__)


def check(found: Probabilities, expected: Probabilities, report: Callable[[str, object], None]) -> None:
    difference = largest(found, expected)
    report("max_dp", round(difference, 5))
    same_top(found, expected)
    assert difference <= TOLERANCE
