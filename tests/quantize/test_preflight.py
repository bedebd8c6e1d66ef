"""What is refused and foretold before any weight is quantized."""

import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from clefquant.errors import InputError, PrerequisiteError
from clefquant.quantize import algorithms
from clefquant.quantize.calibrated import prepare
from clefquant.quantize.preflight import memory_needed, plan
from clefquant.quantize.ranks import Ranks
from clefquant.quantize.unfinished import work_folder
from clefquant.recipes import fused
from clefquant.recipes.layout import make_layout, uniform_layout
from clefquant.release.release import open_release


@pytest.fixture
def copy(tiny, tmp_path):
    """A release of its own to damage."""
    shutil.copytree(tiny.path, tmp_path / "release")
    return tmp_path / "release"


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_nonfinite_source_weight_is_named(copy, folder, value):
    (file,) = copy.glob("model*.safetensors")
    tensors = load_file(file)
    name = "model.language_model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, file, metadata={"format": "pt"})
    release = open_release(copy)
    with pytest.raises(InputError, match=f"{name} of .* hold NaN or infinite"):
        prepare(release, uniform_layout(release, "fp8"), None, folder)
    assert not list(folder.parent.glob("*out*"))


def test_weights_of_another_dtype(copy, folder):
    (file,) = copy.glob("model*.safetensors")
    tensors = {name: tensor.to(torch.float16) for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    release = open_release(copy)
    with pytest.raises(InputError, match="stores linears as F16"):
        prepare(release, uniform_layout(release, "fp8"), None, folder)


def test_an_untested_llmcompressor(tiny, folder, monkeypatch):
    monkeypatch.setattr(fused.importlib.metadata, "version", lambda _: "0.15.0")
    with pytest.raises(PrerequisiteError, match=r"llmcompressor 0\.15\.0 is installed"):
        prepare(tiny, uniform_layout(tiny, "fp8"), None, folder)


@pytest.mark.parametrize(
    ("scheme", "algorithm", "message"),
    [
        ("fp8", "gptq", "gptq needs --calibration"),
        ("mxfp4", "awq-mlp", "awq-mlp needs --calibration"),
        ("bf16", "rtn", "nothing to quantize"),
    ],
)
def test_what_cannot_end_well_is_refused_before_the_weights_are_read(
    tiny, folder, monkeypatch, scheme, algorithm, message
):
    monkeypatch.setattr(type(tiny), "nonfinite", property(lambda _: pytest.fail("read")))
    with pytest.raises(InputError, match=message):
        prepare(tiny, uniform_layout(tiny, scheme), None, folder, algorithm=algorithm)


def test_awq_refuses_company(tiny, folder, monkeypatch):
    monkeypatch.setattr(algorithms, "ranks", lambda: Ranks(0, 2))
    with pytest.raises(InputError, match="awq runs in one process"):
        prepare(tiny, uniform_layout(tiny, "mxfp4"), tiny.path, folder, algorithm="awq")


@pytest.mark.parametrize("algorithm", ["gptq", "awq"])
def test_headroom_is_not_measured_with_two_models(tiny, folder, algorithm):
    with pytest.raises(InputError, match="--algorithm rtn, and leave --compare out"):
        prepare(tiny, uniform_layout(tiny, "nvfp4"), tiny.path, folder, algorithm=algorithm, compare=tiny.path)


def test_a_format_inside_a_unit_is_refused_with_the_unit(tiny):
    units = {unit.name: "fp8" for unit in tiny.units}
    del units["layers.0.mlp"]
    units |= {"layers.0.mlp.gate_proj": "mxfp4", "layers.0.mlp.up_proj": "fp8", "layers.0.mlp.down_proj": "fp8"}
    with pytest.raises(InputError, match=r"gate_proj.*part of layers\.0\.mlp.*one format"):
        make_layout(tiny, units)


def test_the_plan(tiny, encoded, folder):
    layout = make_layout(tiny, {unit.name: "nvfp4" if unit.kind == "mlp" else "fp8" for unit in tiny.units})
    found = plan(tiny, layout, "rtn", encoded, folder)
    assert found.formats == {"nvfp4": 4, "fp8": 4}
    assert found.tokens == sum(len(record.input_ids) for record in encoded)
    assert (found.bytes, found.source_bytes) == (layout.bytes, tiny.backbone_bytes)
    assert found.disk_needed > layout.bytes
    assert not folder.exists()


@pytest.mark.parametrize("algorithm", ["gptq", "awq", "awq-mlp"])
def test_no_time_is_promised_that_the_probe_does_not_measure(tiny, encoded, folder, algorithm):
    layout = uniform_layout(tiny, "mxfp4")
    assert plan(tiny, layout, algorithm, encoded, folder).seconds is None
    assert plan(tiny, layout, "rtn", encoded, folder).seconds is not None


def test_disk_that_an_interrupted_run_holds_is_not_asked_for_again(tiny, encoded, folder):
    layout = uniform_layout(tiny, "fp8")
    whole = plan(tiny, layout, "rtn", encoded, folder).disk_needed
    work_folder(folder).mkdir()
    shard = work_folder(folder) / "model.safetensors"
    with shard.open("wb") as file:
        file.truncate(layout.bytes)
        assert plan(tiny, layout, "rtn", encoded, folder).disk_needed == whole, "reserved, not taken"
        file.write(bytes(1 << 16))
        file.flush()
        os.fsync(file.fileno())  # some file systems take the space only now
    assert plan(tiny, layout, "rtn", encoded, folder).disk_needed == whole - shard.stat().st_blocks * 512 < whole


def test_memory_grows_with_the_layer_and_not_with_the_model(tiny, encoded):
    cpu = torch.device("cpu")
    without = memory_needed(tiny, "rtn", (), cpu)
    rtn, gptq, awq = (memory_needed(tiny, algorithm, encoded, cpu) for algorithm in ("rtn", "gptq", "awq"))
    assert without < rtn < min(gptq, awq)
