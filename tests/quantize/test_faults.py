"""Faults seen in public checkpoints of this family, each impossible here: names, classes, lost tensors, dead inputs."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from clefquant.progress import SILENT
from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.statistics import InputStatistics
from clefquant.recipes.layout import uniform_layout
from clefquant.release.headers import read_backbone
from clefquant.release.load import load_release
from clefquant.release.release import open_release

DEAD = InputStatistics(amax=0.0, rms=0.0, token_p50=0.0, token_p99=0.0, dead_channels=64, tokens=9)


class Warnings:
    """Keeps what is warned of."""

    def __init__(self):
        self.said = []

    def task(self, *arguments):
        return SILENT.task(*arguments)

    def warn(self, text):
        self.said.append(text)


@pytest.fixture(scope="module")
def with_mtp(tiny, tmp_path_factory):
    """The tiny release with a next-token head, as some bases carry."""
    folder = tmp_path_factory.mktemp("mtp") / "release"
    shutil.copytree(tiny.path, folder)
    (file,) = folder.glob("model*.safetensors")
    tensors = load_file(file) | {"mtp.fc.weight": torch.ones(64, 128, dtype=torch.bfloat16)}
    save_file(tensors, file, metadata={"format": "pt"})
    for index in folder.glob("*.index.json"):
        index.unlink()
    return open_release(folder)


@pytest.fixture(scope="module")
def checkpoint(with_mtp, tmp_path_factory):
    layout = uniform_layout(with_mtp, "nvfp4")
    statistics = {linear.name: DEAD for unit in with_mtp.units for linear in unit.linears}
    progress = Warnings()
    folder = tmp_path_factory.mktemp("faults") / "out"
    write_checkpoint(with_mtp, layout, to_nearest(with_mtp, layout, statistics), folder, progress=progress)
    return folder, progress.said


def test_next_token_heads_do_not_vanish(with_mtp, checkpoint):
    stored = read_backbone(checkpoint[0])
    assert stored["mtp.fc.weight"].read() == with_mtp.tensors["mtp.fc.weight"].read()
    assert json.loads((checkpoint[0] / "checkpoint.json").read_text())["tensors"]["quantized"] == 25


def test_the_class_and_the_nested_configs_are_the_sources(with_mtp, checkpoint):
    config = json.loads((checkpoint[0] / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert (config["text_config"], config["vision_config"]) == (
        with_mtp.config["text_config"],
        with_mtp.config["vision_config"],
    )


def test_nothing_of_the_vision_tower_and_no_key_value_scale(checkpoint):
    stored = read_backbone(checkpoint[0])
    assert not [name for name in stored if "visual" in name and re.search("_scale|_packed", name)]
    assert not [name for name in stored if name.endswith(("k_scale", "v_scale"))]
    assert json.loads((checkpoint[0] / "config.json").read_text())["quantization_config"]["kv_cache_scheme"] is None


def test_dead_inputs_make_no_infinite_scale_and_are_named(checkpoint):
    folder, said = checkpoint
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith("scale"):
            values = tensor.float()
            assert values.isfinite().all(), name
            assert "global" not in name or (values > 0).all(), name
    assert said
    assert said[0].startswith("25 linears saw only zeros in calibration, first model.language_model.layers.0")


def test_a_processor_loads_from_the_checkpoint(checkpoint):
    from transformers import AutoProcessor

    assert AutoProcessor.from_pretrained(checkpoint[0]).tokenizer("a parcel").input_ids


def test_a_tied_table_is_stored_once_and_said(tiny, tmp_path):
    folder = tmp_path / "tied"
    shutil.copytree(tiny.path, folder)
    (file,) = folder.glob("model*.safetensors")
    tensors = load_file(file)
    tensors.pop("lm_head.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    for index in folder.glob("*.index.json"):
        index.unlink()
    release = open_release(folder)
    layout = uniform_layout(release, "fp8")
    out = write_checkpoint(release, layout, to_nearest(release, layout, {}), tmp_path / "out")
    assert "lm_head.weight" not in read_backbone(out)
    table = load_release(release).model.language_model
    assert torch.equal(table.lm_head.weight, table.model.language_model.embed_tokens.weight)
