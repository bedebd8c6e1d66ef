"""The probe of a release: a few short records with the answers it must give, checked by every server at its start."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clefquant.calibration.stored import StoredRecord
from clefquant.release.load import option_logits
from clefquant.verify.simulated import load_simulated

SCHEMA_VERSION = 1
_RECORDS = 3
#: Largest difference of a probability that kernels in bfloat16 may make (measured between transformers and vLLM:
#: 0.016).
TOLERANCE = 0.05


def make_probe(checkpoint: Path, records: Sequence[StoredRecord]) -> dict[str, Any]:
    """Simulated logits of ``checkpoint`` on the shortest ``records``, in the form of ``clefquant_probe.json``."""
    chosen = sorted(records, key=lambda record: (record.tokens, record.record_id))[:_RECORDS]
    return {
        "schema_version": SCHEMA_VERSION,
        "records": [record.record for record in chosen],
        "logits": simulated_logits(checkpoint, chosen),
        "tolerance": TOLERANCE,
    }


def simulated_logits(folder: Path, records: Sequence[StoredRecord]) -> list[dict[str, dict[str, float]]]:
    """Per record: question id to option id to logit, as a server of ``folder`` would answer."""
    with load_simulated(folder) as loaded:
        answers = dict(option_logits(loaded, [record.encoded for record in records]))
    return [
        {
            question.question_id: dict(zip(question.option_ids, values.tolist(), strict=True))
            for question, values in zip(record.encoded.questions, answers[index], strict=True)
        }
        for index, record in enumerate(records)
    ]
