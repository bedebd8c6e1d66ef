"""A run small enough for a test: the tiny release, a dozen generated records, limits it keeps."""

import pytest
import yaml

from ..export.conftest import hub  # noqa: F401  (a fixture)

SOURCES = [
    {"name": "routing", "kind": "generator", "family": "routing", "count": 4, "license": "Apache-2.0"},
    {"name": "game", "kind": "generator", "family": "game", "count": 4, "license": "Apache-2.0"},
]


@pytest.fixture
def small_run(tiny, tmp_path):
    """Writes ``run.yaml`` with changes to its fields and returns its path; the run's folder is ``out`` beside it."""
    (tmp_path / "few.yaml").write_text(yaml.safe_dump({"name": "few", "max_length": 512, "sources": SOURCES}))
    (tmp_path / "gate.yaml").write_text("judge: value\nlimits: [kl <= 1, nan == 0]\n")
    (tmp_path / "strict.yaml").write_text("judge: value\nlimits: [kl <= 1e-12]\n")

    def write(**changes):
        config = {
            "model": str(tiny.path), "base_model": "acme/clef-tuned", "out": str(tmp_path / "out"),
            "calibration": {"mixture": "few.yaml"}, "evaluation": {"mixture": "few.yaml", "seed": 1},
            "scheme": "nvfp4", "verify": {"gate": "gate.yaml"}, **changes,
        }  # fmt: skip
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in config.items() if value is not None}))
        return path

    return write
