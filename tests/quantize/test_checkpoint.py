"""Checkpoints: what is kept, what is shared, what is refused, what is left behind."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

from clefquant.errors import InputError, PrerequisiteError
from clefquant.quantize import algorithms, calibrated, finishing
from clefquant.quantize.algorithms import to_nearest
from clefquant.quantize.calibrated import quantize
from clefquant.quantize.checkpoint import write_checkpoint
from clefquant.quantize.statistics import collect_statistics
from clefquant.quantize.unfinished import alone
from clefquant.recipes.layout import uniform_layout
from clefquant.release import shards
from clefquant.release.headers import read_backbone
from clefquant.release.release import open_release
from clefquant.release.units import BLOCKS


@pytest.fixture(scope="module")
def statistics(tiny_loaded, encoded):
    return collect_statistics(tiny_loaded.release, encoded)


@pytest.fixture(scope="module")
def nvfp4(tiny, statistics, tmp_path_factory):
    return write_checkpoint(
        tiny,
        uniform_layout(tiny, "nvfp4"),
        to_nearest(tiny, uniform_layout(tiny, "nvfp4"), statistics),
        tmp_path_factory.mktemp("ck") / "nvfp4",
    )


def test_groups_share_a_bit_equal_global_scale(nvfp4):
    tensors = load_file(nvfp4 / "model.safetensors")
    blocks = {name: groups for name, _, groups in BLOCKS}
    seen = 0
    for name in [n for n in tensors if n.endswith("weight_global_scale")]:
        parent, leaf = re.fullmatch(r"(.*)\.(\w+)\.weight_global_scale", name).groups()
        group = next(group for group in blocks[parent.rsplit(".", 1)[1]] if leaf in group)
        assert len({tensors[f"{parent}.{member}.weight_global_scale"].view(-1).item() for member in group}) == 1
        seen += len(group) > 1
    assert seen


def test_everything_else_is_byte_identical(tiny, nvfp4):
    stored = read_backbone(nvfp4)
    quantized = {f"{linear.name}.weight" for unit in tiny.units for linear in unit.linears}
    for name, info in tiny.tensors.items():
        assert (name in stored) != (name in quantized)
        if name in stored:
            assert stored[name].read() == info.read()
    for file in tiny.side_files:
        if file.name != "config.json":
            assert (nvfp4 / file.name).read_bytes() == file.read_bytes()


def test_index_lists_the_backbone_alone(nvfp4):
    index = json.loads((nvfp4 / "model.safetensors.index.json").read_text())
    stored = read_backbone(nvfp4)
    assert index["weight_map"].keys() == stored.keys()
    assert index["metadata"]["total_size"] == sum(info.bytes for info in stored.values())
    assert json.loads((nvfp4 / "layout.json").read_text())["bytes"] == index["metadata"]["total_size"]


def test_several_shards_hold_the_same_tensors(tiny, statistics, nvfp4, folder):
    write_checkpoint(
        tiny,
        uniform_layout(tiny, "nvfp4"),
        to_nearest(tiny, uniform_layout(tiny, "nvfp4"), statistics),
        folder,
        max_shard_bytes=50_000,
    )
    one, many = read_backbone(nvfp4), read_backbone(folder)
    assert len({info.file for info in many.values()}) > 2
    assert {name: info.read() for name, info in one.items()} == {name: info.read() for name, info in many.items()}


def test_already_quantized(nvfp4):
    with pytest.raises(InputError, match=r"already quantized \(nvfp4-pack-quantized\)"):
        uniform_layout(open_release(nvfp4), "fp8")


def test_nvfp4_without_calibration(tiny, folder):
    with pytest.raises(InputError, match="nvfp4 needs --calibration"):
        quantize(tiny, uniform_layout(tiny, "nvfp4"), None, folder)
    assert not folder.exists()


def test_too_little_disk(tiny, folder, monkeypatch):
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(PrerequisiteError, match="MB free"):
        quantize(tiny, uniform_layout(tiny, "fp8"), None, folder)


def test_two_commands_do_not_write_one_checkpoint(tiny, folder, monkeypatch):
    monkeypatch.setattr(calibrated, "_run", lambda *_, **__: pytest.fail("started"))
    with alone(folder), pytest.raises(InputError, match=f"another command is writing {folder}"):
        quantize(tiny, uniform_layout(tiny, "fp8"), None, folder)
    assert not list(folder.parent.iterdir())


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_failure_in_the_middle_leaves_nothing(tiny, folder, monkeypatch, failure):
    calls = iter(range(3))
    real = finishing.quantize_unit

    def fail_at_the_third(*arguments):
        if next(calls) == 2:
            raise failure
        return real(*arguments)

    monkeypatch.setattr(finishing, "quantize_unit", fail_at_the_third)
    with pytest.raises(type(failure) if isinstance(failure, OSError) else failure):
        write_checkpoint(tiny, uniform_layout(tiny, "fp8"), to_nearest(tiny, uniform_layout(tiny, "fp8"), {}), folder)
    assert list(folder.parent.iterdir()) == []


def test_repeats_byte_for_byte(tiny, statistics, nvfp4, folder):
    write_checkpoint(
        tiny, uniform_layout(tiny, "nvfp4"), to_nearest(tiny, uniform_layout(tiny, "nvfp4"), statistics), folder
    )
    assert (folder / "model.safetensors").read_bytes() == (nvfp4 / "model.safetensors").read_bytes()


def test_earlier_statistics_of_the_same_set_are_not_collected_again(tiny, game_set, folder, tmp_path, monkeypatch):
    stored = game_set(2)
    quantize(tiny, uniform_layout(tiny, "nvfp4"), stored, folder)
    monkeypatch.setattr(algorithms, "Layerwise", lambda *_, **__: pytest.fail("collected again"))
    earlier = folder / "input_statistics.json"
    again = quantize(tiny, uniform_layout(tiny, "nvfp4"), stored, tmp_path / "again", earlier=earlier)
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.fixture
def failing(tiny, folder, monkeypatch):
    """Quantizes with an error in the middle."""

    def run(error):
        def fail(*_, **__):
            raise error

        monkeypatch.setattr(finishing, "quantize_unit", fail)
        quantize(tiny, uniform_layout(tiny, "fp8"), None, folder)

    return run


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:125] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB."),
        MemoryError(),
    ],
    ids=["CPU", "GPU", "Python"],
)
def test_running_out_of_memory_names_what_to_change(failing, error):
    with pytest.raises(PrerequisiteError, match=r"not enough memory with no records.*shorter or fewer records"):
        failing(error)


def test_a_fault_about_memory_is_not_too_little_of_it(failing):
    with pytest.raises(RuntimeError, match="illegal memory access"):
        failing(RuntimeError("CUDA error: an illegal memory access was encountered"))
