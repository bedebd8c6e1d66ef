"""A release's files beside its checksums."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from clef_vllm.release import ReleaseError
from clef_vllm.sums import SUMS, compare_files

DECIDING = {
    "model.safetensors": b"weights" * 300_000,
    "clef_head/tables_int8.safetensors": b"tables",
    "config.json": b"{}",
}
FILES = {**DECIDING, "README.md": b"card", "vllm_plugin/clef_vllm/__init__.py": b""}
RELEASES = os.environ.get("CLEF_RELEASES")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items()]
    (tmp_path / SUMS).write_text("".join(lines))
    return tmp_path


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_files_as_exported(folder: Path) -> None:
    assert compare_files(folder) == "clef-vllm: 3 files equal their checksums"
    (folder / SUMS).unlink()
    assert "were not compared" in compare_files(folder)


@pytest.mark.parametrize("name", DECIDING)
def test_one_bit(folder: Path, name: str) -> None:
    flip_last_bit(folder / name)
    with pytest.raises(ReleaseError, match=f"^{name} in .* is not the file that was exported"):
        compare_files(folder)


def test_what_does_not_decide_an_answer_may_be_edited(folder: Path) -> None:
    flip_last_bit(folder / "README.md")
    (folder / "vllm_plugin/clef_vllm/__init__.py").unlink()
    assert "3 files" in compare_files(folder)


def test_missing_file_and_broken_list(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ReleaseError, match=r"has no config.json, which its SHA256SUMS names"):
        compare_files(folder)
    (folder / SUMS).write_text("nonsense\n")
    with pytest.raises(ReleaseError, match="a line that is no checksum"):
        compare_files(folder)


@pytest.mark.skipif(not RELEASES, reason="CLEF_RELEASES names no folder of releases")
def test_a_release_with_one_altered_weight_is_refused(tmp_path: Path) -> None:
    """One bit of one weight moves no answer that a probe could notice. No engine is started."""
    from clef_vllm import ClefVLLM

    folder = tmp_path / "altered"
    shutil.copytree(Path(str(RELEASES)) / "nvfp4", folder)
    flip_last_bit(folder / "model.safetensors")
    with pytest.raises(ReleaseError, match=r"model.safetensors in .* is not the file that was exported"):
        ClefVLLM(folder)
