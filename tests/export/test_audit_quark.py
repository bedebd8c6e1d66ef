"""Checkpoints in AMD Quark's form: overrides per layer, exclusions, what vLLM reads otherwise."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clefquant.export.audit import audit
from clefquant.export.describe_model import describe_model
from clefquant.export.repair import repair
from clefquant.export.sums import write_sums

from .conftest import quark_spec

pytestmark = pytest.mark.parametrize("published", ["clef-mxfp4"], indirect=True)
FP8 = {
    "bias": None, "output_tensors": None,
    "weight": quark_spec(dtype="fp8_e4m3", qscheme="per_channel", ch_axis=0, group_size=None, scale_format=None),
    "input_tensors": quark_spec(dtype="fp8_e4m3", qscheme="per_channel", is_dynamic=True, group_size=None),
}  # fmt: skip
KV = quark_spec(dtype="fp8_e4m3", qscheme="per_tensor", group_size=None)


def _edit(folder: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))
    write_sums(folder)


def _found(folder: Path) -> dict[str, str]:
    return {finding.check: finding.severity for finding in audit(folder) if finding.severity != "info"}


def _first(folder: Path, leaf: str) -> str:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return next(name for name in sorted(index) if name.endswith(f"{leaf}.weight")).removesuffix(".weight")


def _tensors(folder: Path, change: Callable[[dict], None]) -> None:
    for file in folder.glob("model-*.safetensors"):
        held = load_file(file)
        change(held)
        save_file(held, file, metadata={"format": "pt"})
    write_sums(folder)


FAULTS = {
    "AWQ settings": ("algo-config", lambda q: q.update(algo_config=[{"name": "awq", "scaling_layers": []}])),
    "no export section": ("quark-export", lambda q: q.pop("export")),
    "star in exclude": ("pattern", lambda q: q["exclude"].append("model.visual.*")),
    "pattern vLLM never matches": ("pattern", lambda q: q["exclude"].append(r"re:model\.visual\..*")),
    "no weight": ("quantization-config", lambda q: q["global_quant_config"].update(weight=None)),
    "no object": ("quantization-config", lambda q: q.update(layer_quant_config=["x"])),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(published, fault):
    check, change = FAULTS[fault]
    _edit(published, change)
    found = _found(published)
    assert found[check] == "error"
    assert set(found) <= {check, "group-match", "never-quantized"}


def test_a_layer_in_another_format(published):
    module = _first(published, "out_proj")

    def to_fp8(held: dict) -> None:
        if f"{module}.weight" in held:
            packed = held[f"{module}.weight"]
            held[f"{module}.weight"] = torch.ones(len(packed), 2 * packed.shape[1]).to(torch.float8_e4m3fn)
        if f"{module}.weight_scale" in held:
            held[f"{module}.weight_scale"] = torch.ones(len(held[f"{module}.weight_scale"]), 1)

    _tensors(published, to_fp8)
    assert {"wrong-dtype", "wrong-shape"} <= set(_found(published))
    for pattern in (module, f"*{module.removeprefix('model.')}"):
        _edit(published, lambda q, pattern=pattern: q.update(layer_quant_config={pattern: FP8}))
        assert _found(published) == {"index-size": "warning"}
    unit = ".".join(module.removeprefix("model.language_model.").split(".")[:3])
    assert describe_model(published)[1]["units"][unit] == "mixed"


def test_a_layer_left_out_by_an_override_must_be_plain(published):
    module = _first(published, "out_proj")
    _edit(published, lambda q: q.update(layer_quant_config={module: {"weight": None, "input_tensors": None}}))
    assert _found(published) == {"group-match": "error"}


def test_formats_that_are_not_known_are_named(published):
    weight = [quark_spec(group_size=16), quark_spec(dtype="fp8_e4m3", qscheme="per_tensor")]
    _edit(published, lambda q: q["global_quant_config"].update(weight=weight))
    assert _found(published) == {"unknown-format": "warning"}
    assert any("quark-fp4+fp8_e4m3" in finding.message for finding in audit(published))


def test_a_key_value_cache_scheme_is_a_warning(published):
    both = {"weight": quark_spec(), "input_tensors": quark_spec(is_dynamic=True), "output_tensors": KV}
    _edit(
        published,
        lambda q: (q["export"].update(kv_cache_group=["*k_proj"]), q["layer_quant_config"].update({"*k_proj": both})),
    )
    assert _found(published) == {"kv-cache": "warning"}


def test_repair_takes_the_algorithm_out(published, tmp_path):
    _edit(published, FAULTS["AWQ settings"][1])
    done = repair(published, tmp_path / "out")
    assert done.left == []
    assert json.loads((done.path / "config.json").read_text())["quantization_config"]["algo_config"] is None
