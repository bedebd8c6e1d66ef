"""Start-up checks, each with the folder it must accept and the ones it must refuse, and the words it must say."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from clef_vllm import checks
from clef_vllm.probe import largest_difference, read_probe, run_probe
from clef_vllm.release import Release, ReleaseError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The least a release folder needs to be opened."""
    save_file({"x": torch.zeros(1)}, tmp_path / "joint_head.safetensors")
    (tmp_path / "joint_head_config.json").write_text(json.dumps({"hidden_size": 8}))
    (tmp_path / "joint_schema_model.py").write_text("VALUE = 7\n")
    return tmp_path


def mark(folder: Path, version: str | None, tables: bool) -> Release:
    config = {"hidden_size": 8} if version is None else {"hidden_size": 8, "requires_clef_vllm": version}
    (folder / "joint_head_config.json").write_text(json.dumps(config))
    if tables:
        (folder / "clef_head").mkdir(exist_ok=True)
        save_file({"x": torch.zeros(1)}, folder / "clef_head" / "tables_int8.safetensors")
    return Release.open(folder)


def test_release_shapes(folder: Path) -> None:
    release = Release.open(folder)
    assert (release.head_weights.parent, release.tables, release.marker) == (folder, None, None)
    assert release.code().VALUE == 7
    (folder / "clef_head").mkdir()
    for name in ("joint_head.safetensors", "joint_head_config.json"):
        (folder / name).rename(folder / "clef_head" / name)
    assert Release.open(folder).head_weights == folder / "clef_head" / "joint_head.safetensors"


def test_release_faults(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="not a folder"):
        Release.open(tmp_path / "nowhere")
    (folder / "joint_schema_model.py").unlink()
    with pytest.raises(ReleaseError, match=r"no joint_schema_model\.py"):
        Release.open(folder)
    (folder / "joint_head.safetensors").unlink()
    with pytest.raises(ReleaseError, match="not a Clef release"):
        Release.open(folder)


def test_marker_both_ways(folder: Path) -> None:
    checks.check_marker(mark(folder, None, tables=False), "0.1.0")
    checks.check_marker(mark(folder, "0.1.0", tables=True), "0.1.0")
    checks.check_marker(mark(folder, "0.9.3", tables=True), "0.10.0")
    assert "requires_clef_vllm" not in Release.open(folder).head_config
    with pytest.raises(ReleaseError, match=r"needs clef-vllm 0\.2\.0 or newer, this is clef-vllm 0\.1\.0"):
        checks.check_marker(mark(folder, "0.2.0", tables=True), "0.1.0")
    with pytest.raises(ReleaseError, match=r"int8 tables but no requires_clef_vllm.*clef-vllm 0\.1\.0"):
        checks.check_marker(mark(folder, None, tables=True), "0.1.0")
    with pytest.raises(ReleaseError, match="'soon', not a version"):
        checks.check_marker(mark(folder, "soon", tables=True), "0.1.0")


def test_architecture() -> None:
    checks.check_architecture(["ClefForDecision"], ["token_classify"])
    with pytest.raises(ReleaseError, match="override did not take effect"):
        checks.check_architecture(["Qwen3_5ForConditionalGeneration"])
    with pytest.raises(ReleaseError, match="runner='pooling'"):
        checks.check_architecture(["ClefForDecision"], ["generate"])


def test_ranks_must_divide_heads() -> None:
    config = SimpleNamespace(linear_num_key_heads=16, linear_num_value_heads=48, num_attention_heads=24)
    for ranks in (1, 2, 4, 8):
        checks.check_ranks(config, ranks)
    with pytest.raises(ReleaseError, match="3 tensor-parallel ranks do not divide linear_num_key_heads = 16"):
        checks.check_ranks(config, 3)


def test_kernel_descriptions() -> None:
    assert checks.describe("MarlinNvFp4LinearKernel").startswith("weight-only")
    assert checks.describe("FlashInferCuteDslNvFp4W4A16LinearKernel").startswith("weight-only")
    assert checks.describe("CutlassNvFp4LinearKernel") == "weights and activations quantized"
    assert checks.describe("EmulatedFp8Kernel").startswith("emulated")
    assert checks.describe("XPUW8A16FP8LinearKernel").startswith("weight-only")
    assert "8 bits" in checks.describe("Rdna3W4A8MxFp4LinearKernel")
    assert "16-bit unless" in checks.describe("HummingNvFp4LinearKernel")


LOGITS = {"q": {"a": 1.0, "b": -1.0}}


def write_probe(path: Path, **changes: Any) -> Path:
    probe = {"schema_version": 1, "records": [{"state": 1}], "logits": LOGITS, "tolerance": 0.02, **changes}
    path.write_text(json.dumps(probe))
    return path


def test_probe(tmp_path: Path) -> None:
    path = write_probe(tmp_path / "clefquant_probe.json")
    assert "probe matches" in run_probe(path, lambda _: [{"q": {"a": 3.01, "b": 1.0}}])  # a constant does not matter
    assert "has no probe" in run_probe(None, lambda _: [])
    for answer in ({"q": {"a": 1.0, "b": -0.8}}, {"q": {"a": 1.0}}, {"q": {"a": float("nan"), "b": -1.0}}, {}):
        with pytest.raises(ReleaseError, match="does not match"):
            run_probe(path, lambda _, answer=answer: [answer])


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"schema_version": 2}, "schema version 2, this plugin reads 1"), ({"records": []}, "0 records"),
     ({"tolerance": 0}, "tolerance 0"), ({"tolerance": None}, "not a probe file"),
     ({"logits": [LOGITS, LOGITS]}, "2 sets of logits")],
)  # fmt: skip
def test_probe_faults(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ReleaseError, match=words):
        read_probe(write_probe(tmp_path / "probe.json", **changes))


def test_probe_difference_is_in_probabilities() -> None:
    assert largest_difference(LOGITS, {"q": {"a": 11.0, "b": 9.0}}) < 1e-12
    assert largest_difference(LOGITS, {"q": {"b": 1.0, "a": -1.0}}) == pytest.approx(0.7616, abs=1e-4)
