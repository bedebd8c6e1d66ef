"""Fixtures: the bundled nano, a tiny random release that nobody here wrote, and a small encoded set."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clefquant.release.load import LoadedRelease, load_release
from clefquant.release.release import Release, open_release

RECORDS = [
    {
        "state": {"ticket": number, "text": "the parcel never came " * (number % 5 + 1)},
        "questions": {
            "late": {"type": "noul", "instructions": "Is it about a late delivery?"},
            "team": {"type": "choice", "instructions": "Who?", "criteria": {"a": "money", "post": None, "it": "bugs"}},
            "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "this week", "today"]},
        },
    }
    for number in range(8)
]  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """clef-finetune's own random release: 4 layers, hidden size 64, byte tokenizer."""
    from clef_finetune.tiny import build_tiny_release

    return open_release(build_tiny_release(tmp_path_factory.mktemp("tiny") / "release"))


@pytest.fixture(scope="session")
def nano() -> Release:
    """The bundled trained model."""
    return open_release("nano")


@pytest.fixture(scope="session")
def tiny_loaded(tiny: Release) -> LoadedRelease:
    return load_release(tiny)


@pytest.fixture(scope="session")
def encoded(tiny_loaded: LoadedRelease) -> list:
    tokenizer = tiny_loaded.processor.tokenizer
    return [tiny_loaded.code.encode_record(tokenizer, record) for record in RECORDS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "out"


@pytest.fixture(scope="session")
def game_set(tiny: Release, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Builds a stored set of so many generated records for the tiny release."""

    def build(count: int) -> Path:
        from clefquant.calibration.build import build_set
        from clefquant.calibration.mixture import load_mixture

        folder = tmp_path_factory.mktemp("set")
        source = {"name": "game", "kind": "generator", "family": "game", "count": count, "license": "Apache-2.0"}
        (folder / "mixture.yaml").write_text(json.dumps({"sources": [source]}))
        return build_set(tiny, load_mixture(folder / "mixture.yaml"), None, folder / "set").path

    return build


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine with two processors."""
    ray = pytest.importorskip("ray", reason="Ray is optional: uv pip install ray")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield ray
    ray.shutdown()
