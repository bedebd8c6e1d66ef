"""The BF16 side: its answers, computed once and kept, and how far BF16 is from itself.

The noise floor is measured on a seeded sample of records that are answered again in smaller batches and one at a
time. The weights are the same, so every difference is the order of floating-point sums: no change below it means
anything.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clefquant import __version__
from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError
from clefquant.progress import Progress
from clefquant.release.artefact import package_versions, provenance, sha256_json
from clefquant.release.load import default_device, default_dtype
from clefquant.release.release import Release, open_release
from clefquant.verify.answers import KIND, SCHEMA_VERSION, AnswerFile, read_answers, write_answers
from clefquant.verify.chunks import Pass, Shard, answer_in_chunks, discard
from clefquant.verify.runner import chip, release_runner

NOISE_RECORDS = 64
OTHER_BATCHING, ONE_AT_A_TIME = "logits_other_batching", "logits_one_at_a_time"


def origin(
    release: Release, sets: dict[str, str], device: torch.device, batch_tokens: int, **more: Any
) -> dict[str, Any]:
    """Everything that decides the numbers of a run, JSON-ready. ``sets``: set name to fingerprint."""
    return {
        "fingerprint": release.fingerprint,
        "sets": sorted(sets.values()),
        "dtype": str(default_dtype(device)).removeprefix("torch."),
        "device": device.type,
        "chip": chip(device),
        "versions": {"clefquant": __version__, **package_versions()},
        "batch_tokens": batch_tokens,
        **more,
    }


def reference_answers(
    against: str,
    records: Sequence[StoredRecord],
    sets: dict[str, str],
    out: Path,
    *,
    device: torch.device | None,
    batch_tokens: int,
    seed: int,
    shard: Shard,
    ray: str | None,
    progress: Progress,
) -> tuple[AnswerFile, Path]:
    """The reference's answers with both noise runs, and their file: read from ``against`` or from ``out``, else
    computed."""
    if against.endswith(".parquet"):
        return _given(Path(against), sets), Path(against)
    release = open_release(against)
    if release.quantization is not None:
        raise InputError(
            f"--against {against} is quantized itself; give the BF16 release that the candidate was made from."
        )
    device = device or default_device()
    decides = origin(release, sets, device, batch_tokens, seed=seed, noise_records=NOISE_RECORDS)
    key = sha256_json(decides)[:16]
    path = out / f"reference-{key}.parquet"
    if path.is_file():
        return read_answers(path), path
    head = {
        **provenance(
            KIND, SCHEMA_VERSION, {"model": release.fingerprint, **{f"set {k}": v for k, v in sets.items()}}, seed
        ),
        "model": release.reference,
        "backbone_bytes": release.backbone_bytes,
        "origin": decides,
    }
    work = out / ".parts" / key
    sample = noise_sample(records, seed)
    passes = {
        "logits": (records, batch_tokens),
        OTHER_BATCHING: (sample, max(1, batch_tokens // 4)),
        ONE_AT_A_TIME: (sample, 1),
    }
    found = answer_in_chunks(
        [Pass(work / name, chosen, tokens) for name, (chosen, tokens) in passes.items()],
        release_runner(release, device, ray, simulate=False),
        head={"part_of": key}, title="BF16 and its noise floor", shard=shard, progress=progress,
    )  # fmt: skip
    answers, *again = found
    write_answers(path, answers, head, dict(zip((OTHER_BATCHING, ONE_AT_A_TIME), again, strict=True)))
    discard(work)
    return read_answers(path), path


def noise_sample(records: Sequence[StoredRecord], seed: int) -> list[StoredRecord]:
    """The records that are answered again, in stored order; a long record is as likely as a short one."""
    picked = random.Random(seed).sample(range(len(records)), min(NOISE_RECORDS, len(records)))
    return [records[index] for index in sorted(picked)]


def _given(path: Path, sets: dict[str, str]) -> AnswerFile:
    file = read_answers(path)
    made_from = file.head.get("origin", {}).get("sets")
    if made_from != sorted(sets.values()):
        raise InputError(
            f"{path} holds answers to other evaluation sets than {', '.join(sets)}. Give the sets it was made from, "
            "or the release itself as --against to compute them."
        )
    return file
