"""The auditor: clean releases are clean, and each fault is found and named, alone."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from clefquant.errors import InputError
from clefquant.export.audit import audit, has_errors
from clefquant.release.shards import write_index

LAYER = "model.language_model.layers"


def errors(folder, **options) -> dict[str, list]:
    found: dict[str, list] = {}
    for finding in audit(folder, **options):
        if finding.severity == "error":
            found.setdefault(finding.check, []).append(finding)
    return found


def test_an_exported_release_is_clean(release):
    findings = audit(release)
    assert [finding for finding in findings if finding.severity != "info"] == []
    assert any(finding.check == "serving" for finding in findings)


@pytest.mark.parametrize("scheme", ["fp8", "nvfp4", "mxfp4", "mixed"])
def test_checkpoints_are_clean(make_checkpoint, scheme):
    assert errors(make_checkpoint(scheme)) == {}


def test_published_folder_shapes_are_clean(published):
    findings = audit(published)
    assert [finding for finding in findings if finding.severity == "error"] == []
    assert all(finding.remedy or finding.check in ("serving", "no-head") for finding in findings)


def test_a_plain_bf16_release_is_clean(tiny, tmp_path):
    folder = shutil.copytree(tiny.path, tmp_path / "bf16")
    assert set(errors(folder)) == {"head-in-reach"}  # as it was saved: one shard, no index, the head beside it
    write_index(folder, {name: info.file.name for name, info in tiny.tensors.items()}, tiny.backbone_bytes)
    assert errors(folder) == {}


def test_a_backbone_without_a_head_is_audited_as_such(copy, edit):
    for name in ("joint_head.safetensors", "joint_head_config.json", "joint_schema_model.py"):
        (copy / name).unlink()
    edit.json("config.json", lambda config: config.pop("clefquant"))
    assert errors(copy) == {}
    assert any(finding.check == "no-head" for finding in audit(copy))


def _nvfp4(edit) -> str:
    return next(name for name in edit.index if name.endswith("in_proj_z.weight_packed")).removesuffix(".weight_packed")


def _with(edit, suffix: str, below: str) -> str:
    return next(n for n in sorted(edit.index) if n.endswith(suffix) and f"{n.rsplit('.', 1)[0]}.{below}" in edit.index)


def _poke(value: int):
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(torch.uint8).view(-1)[5] = value
        return tensor

    return change


def _fill(value: float):
    return lambda tensor: tensor.fill_(value)


TENSOR_FAULTS = {
    "unshared global scale": ("fused-scale", "in_proj_z.weight_global_scale", lambda t: t / 2),
    "unshared input scale": ("fused-scale", "in_proj_z.input_global_scale", lambda t: t / 2),
    "infinite scale": ("not-finite", "in_proj_z.weight_global_scale", _fill(float("inf"))),
    "zero global scale": ("zero-scale", "out_proj.weight_global_scale", _fill(0.0)),
    "E4M3 NaN in a scale": ("e4m3-nan", "out_proj.weight_scale", _poke(0x7F)),
    "zero block scale": ("zero-scale", "out_proj.weight_scale", _poke(0)),
    "wrong dtype": ("wrong-dtype", "out_proj.weight_scale", lambda t: t.float()),
    "wrong shape": ("wrong-shape", "out_proj.weight_scale", lambda t: t[:, :-1]),
    "missing scale": ("missing-tensor", "out_proj.weight_scale", lambda t: None),
    "NaN in a norm": ("not-finite", "input_layernorm.weight", _fill(float("nan"))),
    "missing norm": ("missing-tensor", "input_layernorm.weight", lambda t: None),
    "missing table": ("missing-tables", "embed_tokens.weight", lambda t: None),
}  # fmt: skip


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_faults_of_tensors(edit, fault):
    check, suffix, change = TENSOR_FAULTS[fault]
    below = "weight_global_scale" if "proj" in suffix else suffix.rsplit(".", 1)[1]
    name = _with(edit, suffix, below)
    edit.tensor(name, change)
    found = errors(edit.folder)
    assert set(found) == {check}
    assert found[check][0].tensor in (name, name.rsplit(".", 1)[0])
    assert found[check][0].remedy


def test_fp8_and_mxfp4_bytes_that_mean_nan(edit):
    modules = {n.rsplit(".", 1)[0] for n in edit.index if n.endswith(".weight_scale")}
    fp8 = next(m for m in sorted(modules) if f"{m}.weight" in edit.index)
    mxfp4 = next(
        m
        for m in sorted(modules)
        if f"{m}.weight_packed" in edit.index and f"{m}.weight_global_scale" not in edit.index
    )
    edit.tensor(f"{fp8}.weight", _poke(0xFF))
    edit.tensor(f"{mxfp4}.weight_scale", _poke(255))
    found = errors(edit.folder)
    assert found["e4m3-nan"][0].tensor == f"{fp8}.weight"
    assert found["e8m0-nan"][0].tensor == f"{mxfp4}.weight_scale"
    assert set(found) == {"e4m3-nan", "e8m0-nan"}


def test_zero_scales_over_zero_weights_are_a_warning(edit):
    module = next(n.rsplit(".", 1)[0] for n in edit.index if n.endswith("out_proj.weight_global_scale"))
    edit.tensor(f"{module}.weight_scale", _poke(0))
    edit.tensor(f"{module}.weight_packed", lambda t: t.zero_())
    findings = audit(edit.folder)
    assert not has_errors(findings)
    assert any(f.check == "zero-scale" and f.severity == "warning" for f in findings)


@pytest.mark.parametrize(
    "module",
    [
        f"{LAYER}.0.linear_attn.in_proj_a",
        f"{LAYER}.0.linear_attn.in_proj_b",
        "model.visual.blocks.0.attn.qkv",
        "lm_head",
    ],
)
def test_modules_that_must_stay_bf16(edit, module):
    edit.tensor(f"{module}.weight", lambda t: t.to(torch.float8_e4m3fn))
    found = errors(edit.folder)
    assert {f.tensor for f in found["never-quantized"]} == {module}
    assert set(found) == {"never-quantized", "group-match"}


def _group(config: dict, fmt: str) -> dict:
    return next(g for g in config["quantization_config"]["config_groups"].values() if g["format"] == fmt)


FP8, NVFP4 = "float-quantized", "nvfp4-pack-quantized"


def _two_groups(config: dict) -> None:
    _group(config, FP8)["targets"].extend(_group(config, NVFP4)["targets"][:1])


def _ignored_too(config: dict) -> None:
    _group(config, NVFP4)["targets"].append(config["quantization_config"]["ignore"].pop(0))


CONFIG_FAULTS = {
    "generation-only class": ("generation-only", lambda c: c.update(architectures=["Qwen3_5ForCausalLM"])),
    "another class": ("architecture", lambda c: c.update(architectures=["LlamaModel"])),
    "flattened config": ("nested-config", lambda c: c.pop("vision_config")),
    "no text size": ("nested-config", lambda c: c["text_config"].pop("linear_num_key_heads")),
    "no format in a group": ("group-format", lambda c: _group(c, FP8).pop("format")),
    "two groups": ("group-match", _two_groups),
    "no group": ("group-match", lambda c: _group(c, NVFP4)["targets"].pop()),
    "group too many": ("group-match", _ignored_too),
    "pattern vLLM never matches": ("pattern", lambda c: _group(c, FP8)["targets"].append(r"re:^model\.nothing$")),
    "tables claimed": ("tables", lambda c: c["clefquant"].update(tables="int8")),
    "newer plugin needed": ("plugin-version", lambda c: c["clefquant"].update(minimum_plugin_version="99.0")),
    "newer schema": ("newer-schema", lambda c: c["clefquant"].update(schema_version=99)),
    "unknown method": ("quantization-config", lambda c: c["quantization_config"].update(quant_method="magic")),
    "tied but stored": ("tied-tables", lambda c: c["text_config"].update(tie_word_embeddings=True)),
}  # fmt: skip


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_faults_of_the_configuration(edit, fault):
    check, change = CONFIG_FAULTS[fault]
    edit.json("config.json", change)
    found = errors(edit.folder)
    allowed = {check, "group-match"} if fault == "unknown method" else {check}
    assert check in found
    assert set(found) <= allowed
    assert found[check][0].file is not None or found[check][0].tensor is not None


def test_fused_members_in_different_formats(edit):
    def move(config: dict) -> None:
        source, target = _group(config, "nvfp4-pack-quantized"), _group(config, "mxfp4-pack-quantized")
        name = next(n for n in source["targets"] if n.endswith("in_proj_z"))
        source["targets"].remove(name)
        target["targets"].append(name)

    edit.json("config.json", move)
    name = next(n for n in edit.index if n.endswith("in_proj_z.weight_global_scale")).rsplit(".", 1)[0]
    edit.tensors(
        {
            f"{name}.weight_global_scale": lambda t: None,
            f"{name}.input_global_scale": lambda t: None,
            f"{name}.weight_scale": lambda t: torch.full((t.shape[0], t.shape[1] // 2), 127, dtype=torch.uint8),
        }
    )
    found = errors(edit.folder)
    assert set(found) == {"fused-format"}
    assert "in_proj_z" in found["fused-format"][0].message


@pytest.mark.parametrize(("ranks", "clean"), [(1, True), (7, False)])
def test_tensor_parallel_divisibility(release, ranks, clean):
    found = errors(release, ranks=ranks)
    assert (set(found) == set()) is clean
    if not clean:
        assert set(found) == {"tensor-parallel"}
        assert any(f.tensor and f.tensor.endswith("_proj") for f in found["tensor-parallel"])


def test_a_path_that_is_no_folder(tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        audit(tmp_path / "nothing")


def test_random_damage_is_a_finding_not_a_crash(release, tmp_path):
    """Overwrite a stretch of any file with noise: the audit ends, with an error that names the file."""
    random = np.random.default_rng(0)
    names = sorted(
        p.name for p in release.iterdir() if p.is_file() and p.name not in ("SHA256SUMS", "clefquant_card.json")
    )
    for number in range(60):
        folder = tmp_path / str(number)
        shutil.copytree(release, folder)
        file = folder / names[number % len(names)]
        data = bytearray(file.read_bytes())
        start = int(random.integers(0, len(data)))
        noise = random.bytes(min(64, len(data) - start))
        if data[start : start + len(noise)] == noise:
            continue
        data[start : start + len(noise)] = noise
        file.write_bytes(bytes(data))
        assert any(f.file == file.name for f in audit(folder) if f.severity == "error"), file.name


def test_neither_torch_nor_transformers_is_imported(release):
    code = (
        "import sys, pathlib\nfrom clefquant.export.audit import audit\n"
        f"audit(pathlib.Path({str(release)!r}))\n"
        "assert not {'torch', 'transformers', 'compressed_tensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
