"""Stored records, input scales and a finished sweep of the tiny release."""

from pathlib import Path

import pytest
import torch

from clefquant.calibration.stored import StoredRecord
from clefquant.quantize.statistics import collect_statistics
from clefquant.release.release import Release
from clefquant.sensitivity.sweep import sweep
from clefquant.sensitivity.table import SensitivityTable

FORMATS = ("fp8", "nvfp4", "mxfp4")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def records(encoded: list) -> list[StoredRecord]:
    return [StoredRecord(f"r{i}", f"g{i // 2}", ("even", "odd")[i % 2], {}, {}, e) for i, e in enumerate(encoded)]


@pytest.fixture(scope="session")
def input_amax(tiny: Release, encoded: list) -> dict[str, float]:
    return {name: found.amax for name, found in collect_statistics(tiny, encoded).items()}


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory, tiny_loaded, records, input_amax) -> tuple[Path, SensitivityTable]:
    out = tmp_path_factory.mktemp("sweep") / "run"
    return out, sweep(tiny_loaded, input_amax, records, FORMATS, out, shard_tokens=2000)
