"""The probe of a release: a few short records with the answers it must give, checked by every server at its start.

Servers compute in bfloat16. A record whose answer turns on that rounding would make a healthy server stop, so the probe
takes, of the shortest records, those that answer the same in float32 and in bfloat16.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clefquant.calibration.stored import StoredRecord
from clefquant.release.load import option_logits
from clefquant.verify.simulated import load_simulated

SCHEMA_VERSION = 1
#: Largest difference of a probability that kernels in bfloat16 may make; 0.016 was measured between transformers and
#: vLLM on unquantized weights.
TOLERANCE = 0.05
_RECORDS, _CANDIDATES = 3, 8

Logits = list[dict[str, dict[str, float]]]


def make_probe(checkpoint: Path, records: Sequence[StoredRecord]) -> dict[str, Any]:
    """Simulated logits of ``checkpoint`` on short, stable ``records``, in the form of ``clefquant_probe.json``."""
    shortest = sorted(records, key=lambda record: (record.tokens, record.record_id))[:_CANDIDATES]
    wide = simulated_logits(checkpoint, shortest)
    narrow = simulated_logits(checkpoint, shortest, dtype=torch.bfloat16)
    change = [largest_change(a, b) for a, b in zip(wide, narrow, strict=True)]
    chosen = sorted(sorted(range(len(shortest)), key=change.__getitem__)[:_RECORDS])
    return {
        "schema_version": SCHEMA_VERSION,
        "records": [shortest[index].record for index in chosen],
        "logits": [wide[index] for index in chosen],
        "tolerance": TOLERANCE,
    }


def simulated_logits(folder: Path, records: Sequence[StoredRecord], dtype: torch.dtype = torch.float32) -> Logits:
    """Per record: question id to option id to logit, as a server of ``folder`` computing in ``dtype`` would answer."""
    with load_simulated(folder, dtype=dtype) as loaded:
        answers = dict(option_logits(loaded, [record.encoded for record in records]))
    return [
        {
            question.question_id: dict(zip(question.option_ids, values.tolist(), strict=True))
            for question, values in zip(record.encoded.questions, answers[index], strict=True)
        }
        for index, record in enumerate(records)
    ]


def largest_change(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> float:
    """Largest change of a probability between two answers to one record."""
    changes = []
    for question, options in before.items():
        a = torch.tensor(list(options.values()), dtype=torch.float64).softmax(0)
        b = torch.tensor([after[question][option] for option in options], dtype=torch.float64).softmax(0)
        changes.append(float((a - b).abs().max()))
    return max(changes)
