"""Mixtures and files made in the test, encoded by the tiny release's real code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clefquant.calibration.build import Built, build_set
from clefquant.calibration.encoding import Encoder, load_encoder
from clefquant.calibration.mixture import Mixture
from clefquant.release.release import Release

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def encoder(tiny: Release) -> Encoder:
    return load_encoder(tiny.path)


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Write records, one a line."""

    def write(records: list[Any], name: str = "records.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
        return path

    return write


@pytest.fixture
def build(tiny: Release, tmp_path: Path) -> Callable[..., Built]:
    """Build a set from sources given as in a mixture file."""

    def run(
        *sources: dict[str, Any],
        out: str = "set",
        split: str | None = None,
        seed: int = 0,
        max_length: int = 16384,
        **options: Any,
    ) -> Built:
        mixture = Mixture.model_validate(
            {"name": "test", "sources": list(sources), "folder": str(tmp_path), "max_length": max_length}
        )
        return build_set(tiny, mixture, split, tmp_path / out, seed, **options)  # type: ignore[arg-type]

    return run


def record(text: Any = "the parcel never came", **questions: Any) -> dict[str, Any]:
    """A small record."""
    return {"state": text, "questions": questions or {"late": {"type": "noul", "instructions": "Is it late?"}}}
