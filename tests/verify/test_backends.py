"""vLLM's worker under a stand-in engine, and what all backends that really run share."""

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import pytest

from clefquant.errors import CheckFailed, PrerequisiteError
from clefquant.progress import SILENT
from clefquant.verify.markdown import performance_tables
from clefquant.verify.performance import latency_rows, latency_sample, length_bucket, throughput
from clefquant.verify.results import answers_of
from clefquant.verify.runner_vllm import answer_with_vllm, environment

ENGINE = """
class ClefVLLM:
    def __init__(self, model, images):
        self.dtype = "torch.float32"
        self.llm = self.llm_engine = self.vllm_config = self.model_config = self
    def logits(self, records):
        if any("poison" in str(record["state"]) for record in records):
            raise RuntimeError("logits that are not finite")
        return [{name: {o: float(len(o)) for o in options(q)} for name, q in r["questions"].items()} for r in records]
    def __enter__(self): return self
    def __exit__(self, *_): print("engine closed")

def options(q):
    if q["type"] == "noul":
        return ["true", "false"]
    return sorted(q["criteria"]) if q["type"] == "choice" else list(map(str, range(len(q["criteria"]))))
"""


@pytest.fixture
def serving(tmp_path, monkeypatch) -> Path:
    """A Python whose clef_vllm and vllm are stand-ins."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "clef_vllm.py").write_text(ENGINE)
    (tmp_path / "site" / "vllm.py").write_text("__version__ = '0.0'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return Path(sys.executable)


def test_the_worker_answers_and_times(serving, tiny, stored, tmp_path):
    answers, alone, about, speed = answer_with_vllm(serving, tiny, stored, tmp_path, SILENT)
    assert len(answers) == sum(len(record.record["questions"]) for record in stored)
    assert answers[0].options == ("true", "false")
    assert answers[0].logits.tolist() == [4.0, 5.0]
    assert about["engine"] == "vLLM 0.0, clef-vllm"
    assert about["dtype"] == "float32"
    assert speed["throughput"]["records"] == len(stored)
    assert speed["throughput"]["tokens_per_s"] > 0
    assert speed["host_memory_gib"] > 0
    assert "GiB of host memory in use. all at once, offline: " in performance_tables(speed)
    assert sum(row["requests"] for row in speed["latency"]) == len(stored)
    assert {one.record for one in alone} == {record.record_id for record in stored}
    assert "engine closed" in (tmp_path / "vllm.log").read_text()


def test_a_record_the_engine_cannot_answer_is_nan_alone(serving, tiny, stored, tmp_path):
    stored[2].record["state"] = "poison"
    answers, *_ = answer_with_vllm(serving, tiny, stored, tmp_path, SILENT)
    bad = [answer for answer in answers if answer.error]
    assert {answer.record for answer in bad} == {stored[2].record_id}
    assert all(np.isnan(answer.logits).all() for answer in bad)
    assert "not finite" in bad[0].error


def test_an_environment_without_the_plugin(monkeypatch, tiny, stored, tmp_path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(
        PrerequisiteError, match=r"ended with code 1: ModuleNotFoundError: No module named 'vllm'\. All of"
    ):
        answer_with_vllm(Path(sys.executable), tiny, stored, tmp_path, SILENT)


def test_an_environment_names_its_versions(serving, tmp_path):
    found = environment(serving)
    assert found["torch"] == importlib.metadata.version("torch")
    with pytest.raises(PrerequisiteError, match=r"Correct --python"):
        environment(tmp_path / "none")


def test_an_engine_that_drops_records(stored):
    with pytest.raises(CheckFailed, match="answered 1 records of 6"):
        answers_of(stored, [{"logits": {}}], "vLLM")


def test_lengths_and_times(stored):
    assert length_bucket(128) == "≤ 128"
    assert length_bucket(129) == "128–256"
    assert length_bucket(99_999) == "> 16,384"
    sample = latency_sample(stored)
    assert [stored[index].tokens for index in sample] == sorted(record.tokens for record in stored)
    rows = latency_rows(stored, sample, [0.01 * (n + 1) for n in range(len(sample))])
    assert sum(row["requests"] for row in rows) == len(stored)
    assert all(row["p50_ms"] <= row["p95_ms"] for row in rows)
    assert throughput(stored, 2.0, "x")["records_per_s"] == len(stored) / 2
