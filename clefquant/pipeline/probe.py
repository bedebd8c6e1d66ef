"""The probe of a release: a few short records with the answers it must give, checked by every server at its start.

Servers compute in bfloat16. A record whose answer turns on that rounding would make a healthy server stop, so the probe
takes, of the shortest records, those that answer the same when they are computed again in bfloat16, one at a time. The
first answers are in float32 on a CPU; on a GPU, whose memory may hold bfloat16 alone, the batch makes the difference.
Records with media are left out: they refer to files of their set, which a release does not carry.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clefquant.calibration.stored import StoredRecord
from clefquant.release.load import DEFAULT_BATCH_TOKENS, option_logits
from clefquant.verify.simulated import load_simulated

SCHEMA_VERSION = 1
#: Largest difference of a probability that kernels in bfloat16 may make; 0.016 was measured between transformers and
#: vLLM on unquantized weights.
TOLERANCE = 0.05
#: Part of it that the simulation's own rounding may use up; the rest is for other kernels.
_STABLE = TOLERANCE / 2
_RECORDS, _CANDIDATES = 3, 8

Logits = list[dict[str, dict[str, float]]]


def make_probe(checkpoint: Path, records: Sequence[StoredRecord]) -> dict[str, Any] | None:
    """Simulated logits of ``checkpoint`` on short, stable ``records``, in the form of ``clefquant_probe.json``.

    None when no record is fit: all hold media, or the answers to the shortest ones turn on rounding.
    """
    text = [record for record in records if record.encoded.media is None]
    shortest = sorted(text, key=lambda record: (record.tokens, record.record_id))[:_CANDIDATES]
    if not shortest:
        return None
    wide = simulated_logits(checkpoint, shortest)
    narrow = simulated_logits(checkpoint, shortest, dtype=torch.bfloat16, batch_tokens=1)
    change = [largest_change(a, b) for a, b in zip(wide, narrow, strict=True)]
    stable = [index for index in range(len(shortest)) if change[index] <= _STABLE]
    if not stable:
        return None
    chosen = sorted(sorted(stable, key=change.__getitem__)[:_RECORDS])
    return {
        "schema_version": SCHEMA_VERSION,
        "records": [shortest[index].record for index in chosen],
        "logits": [wide[index] for index in chosen],
        "tolerance": TOLERANCE,
    }


def simulated_logits(
    folder: Path,
    records: Sequence[StoredRecord],
    *,
    dtype: torch.dtype | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
) -> Logits:
    """Per record: question id to option id to logit, as a server of ``folder`` computing in ``dtype`` would answer.

    ``dtype``: by default float32 on a CPU, bfloat16 on a GPU.
    """
    with load_simulated(folder, dtype=dtype) as loaded:
        answers = dict(option_logits(loaded, [record.encoded for record in records], batch_tokens=batch_tokens))
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
