"""``questions.parquet``: every question with its measures, for analyses the report does not make."""

from pathlib import Path

from clefquant.release.artefact import new_file
from clefquant.verify.join import Pairs
from clefquant.verify.metrics import Measures


def write_questions(path: Path, pairs: Pairs, m: Measures) -> None:
    """One row per question; ``reference_top``, ``candidate_top`` are option ids, null without a finite answer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tops = {
        name: [
            one.order[place] if finite else None
            for one, place, finite in zip(pairs.asked, side.top, side.finite, strict=True)
        ]
        for name, side in (("reference_top", m.reference), ("candidate_top", m.candidate))
    }
    table = pa.table(
        {
            "record": [one.record for one in pairs.asked],
            "question": [one.question for one in pairs.asked],
            "type": [one.type for one in pairs.asked],
            "group": [one.group for one in pairs.asked],
            "tokens": [one.tokens for one in pairs.asked],
            "options": [len(one.order) for one in pairs.asked],
            "gold": pa.array([one.gold for one in pairs.asked], pa.string()),
            **{name: pa.array(values, pa.string()) for name, values in tops.items()},
            "agree": m.agree,
            "kl": m.kl,
            "tv": m.tv,
            "max_dp": m.max_dp,
            "margin": m.margin,
            "score_change": m.score_change,
            "confidence_reference": m.reference.confidence,
            "confidence": m.candidate.confidence,
        }
    )
    with new_file(path) as work:
        pq.write_table(table, work, compression="zstd")
