"""A small evaluation set of the tiny release, quantized copies of it, and hand-made pairs."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clefquant.calibration.stored import KIND, SCHEMA_VERSION, StoredRecord, open_set, to_line
from clefquant.quantize.calibrated import quantize
from clefquant.recipes.layout import uniform_layout
from clefquant.release.artefact import sha256_file, write_json
from clefquant.release.code import release_code
from clefquant.release.load import LoadedRelease
from clefquant.release.release import Release, open_release
from clefquant.verify.join import Asked, Pairs

WORDS = ["order", "late", "parcel", "shop", "error", "invoice", "refund", "login", "broken", "slow", "happy", "angry"]


def records(count: int, seed: int = 0) -> list[dict]:
    rng = random.Random(seed)
    found = []
    for number in range(count):
        questions = {
            "late": {"type": "noul", "instructions": "Is it about a <b>late</b> delivery?"},
            "team": {"type": "choice", "criteria": {"z": "parcels & post", "billing": "money", "it": None}},
            "urgency": {"type": "score", "criteria": ["can wait", "this week", "today"]},
        }
        if number == 0:
            questions["only"] = {"type": "choice", "criteria": {"a": "x"}}
        state = {"text": " ".join(rng.choice(WORDS) for _ in range(rng.choice([2, 8, 20])))}
        found.append({"state": state, "questions": questions})
    return found


def write_set(path: Path, loaded: LoadedRelease, raw: list[dict], prefix: str = "r") -> Path:
    """A stored set of ``raw`` with answers for the first three questions of every record."""
    path.mkdir(parents=True)
    lines, tokens = [], 0
    for number, record in enumerate(raw):
        encoded = loaded.code.encode_record(loaded.processor.tokenizer, record)
        answers = {"late": "true", "team": ("billing", "it", "z")[number % 3], "urgency": str(number % 3)}
        group = ("tickets", "reviews")[number % 2]
        stored = StoredRecord(f"{prefix}{number}", group, "made", record, answers, encoded)
        tokens += stored.tokens
        lines.append(to_line(stored))
    (path / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder = loaded.release.path
    head = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "split": "evaluation",
        "records": len(raw),
        "tokens": tokens,
        "records_sha256": sha256_file(path / "records.jsonl"),
        "tokenizer_sha256": sha256_file(folder / "tokenizer.json"),
        "code_sha256": sha256_file(folder / "joint_schema_model.py"),
    }
    write_json(path / "set.json", head)
    return path


@pytest.fixture(scope="session")
def evaluation(tmp_path_factory: pytest.TempPathFactory, tiny_loaded: LoadedRelease) -> Path:
    return write_set(tmp_path_factory.mktemp("sets") / "evaluation", tiny_loaded, records(6))


@pytest.fixture(scope="session")
def quantized(
    tmp_path_factory: pytest.TempPathFactory, tiny: Release, tiny_loaded: LoadedRelease
) -> Callable[[str], Release]:
    """The tiny release in a format, written once a session."""
    calibration = write_set(tmp_path_factory.mktemp("sets") / "calibration", tiny_loaded, records(3, seed=1))
    root = tmp_path_factory.mktemp("quantized")

    def make(name: str) -> Release:
        if not (root / name).exists():
            quantize(tiny, uniform_layout(tiny, name), calibration, root / name)
        return open_release(root / name)

    return make


@pytest.fixture
def stored(tiny: Release, evaluation: Path) -> list[StoredRecord]:
    return list(open_set(evaluation, tiny.path, release_code(tiny.path)))


def make_pairs(
    reference: list[list[float]],
    candidate: list[list[float]],
    kinds: list[str] | None = None,
    gold: list[int] | None = None,
) -> Pairs:
    """Pairs from logits question by question, one record per question."""
    counts = [len(one) for one in reference]
    asked = [
        Asked(f"r{n}", "q", (kinds or ["choice"] * len(counts))[n], "g", 10, tuple(map(str, range(count))), None)
        for n, count in enumerate(counts)
    ]
    return Pairs(
        asked,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate(reference).astype(np.float64),
        np.concatenate(candidate).astype(np.float64),
        np.array(gold if gold is not None else [-1] * len(counts), np.int64),
    )


@pytest.fixture
def pairs_of() -> Callable[..., Pairs]:
    return make_pairs
