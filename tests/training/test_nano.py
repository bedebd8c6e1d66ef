"""The shipped nano: loads through the release's own loader unchanged, and answers well on a small fixed sample."""

import importlib.resources
import shutil
from pathlib import Path

import pytest
import torch

from clefquant.calibration.generators import FAMILIES, generate
from training import batches

FOLDER = Path(str(importlib.resources.files("clefquant.release"))) / "nano"
SAMPLE = 12
# Below the marks in training/README.md by what a sample this small can vary.
BARS = {"routing": 0.85, "invoices": 0.85, "game": 0.80, "logs": 0.75}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory):
    if not (FOLDER / "model.safetensors").is_file():
        pytest.skip("the nano weights are not in this checkout")
    try:
        code = batches.release_code()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("release") / "nano"
    shutil.copytree(FOLDER, folder)
    shutil.copy(code.__file__, folder / "joint_schema_model.py")
    model, processor = code.load_release_model(folder, device="cpu", dtype=torch.float32)
    return code, model, processor


def best(answer: dict) -> str:
    if answer["type"] == "noul":
        return "true" if answer["noul"] >= 0.5 else "false"
    return max(answer["probabilities"], key=answer["probabilities"].__getitem__)


def test_small_enough_to_ship() -> None:
    weights = [FOLDER / "model.safetensors", FOLDER / "joint_head.safetensors"]
    assert sum(path.stat().st_size for path in weights) <= 16_000_000
    assert not (FOLDER / "joint_schema_model.py").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_accuracy_on_held_out_records(release, family: str) -> None:
    code, model, processor = release
    right = [
        best(answer) == example.answers[name]
        for example in generate(family, "evaluation", SAMPLE, 11)
        for name, answer in code.systemone(model, processor, {"model": "nano", **example.record})["answers"].items()
    ]
    assert sum(right) / len(right) >= BARS[family]


def test_an_image_changes_the_answer(release) -> None:
    from PIL import Image

    code, model, processor = release
    question = {"type": "noul", "instructions": "Is it urgent?"}
    request = {"model": "nano", "state": "see the picture", "questions": {"urgent": question}}
    pictures = [Image.effect_noise((96, 64), sigma).convert("RGB") for sigma in (5, 120)]
    answers = [code.systemone(model, processor, {**request, "images": [p]}) for p in pictures]
    plain = code.systemone(model, processor, request)
    assert answers[0]["usage"]["input_tokens"] > plain["usage"]["input_tokens"]
    assert all(0 <= a["answers"]["urgent"]["noul"] <= 1 for a in answers)
