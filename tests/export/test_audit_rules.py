"""Rules of the audit one by one, on headers and configurations made by hand."""

from pathlib import Path

import pytest

from clefquant.export.audit.config import check_config, check_quantization
from clefquant.export.audit.folder import AuditFolder
from clefquant.export.audit.fused import fused_findings, fused_groups
from clefquant.export.audit.index import check_index, check_layout
from clefquant.export.audit.modules import check_modules
from clefquant.export.audit.schemes import Group, Quantization, Scheme
from clefquant.export.audit.serving import check_ranks, check_serving
from clefquant.export.audit.shapes import TEXT_NEEDED, text_shapes, tied
from clefquant.release.headers import TensorInfo
from clefquant.release.units import LAYER_PREFIX

FP8 = Scheme("float-quantized", "channel", 8)


def stored(dtype: str, *shape: int, at: tuple[int, int] = (0, 0)) -> TensorInfo:
    return TensorInfo(Path("model.safetensors"), dtype, shape, *at)


def config(**text: object) -> dict:
    return {"text_config": {**dict.fromkeys(TEXT_NEEDED, 2), "num_hidden_layers": 4, **text}}


def folder_of(tensors: dict[str, TensorInfo], **values: object) -> AuditFolder:
    folder = AuditFolder(Path("nowhere"), shards={"model.safetensors": tensors})
    for name, value in values.items():
        setattr(folder, name, value)
    return folder


def one_group(scheme: Scheme, *targets: str, method: str = "compressed-tensors") -> Quantization:
    return Quantization(method, (Group("group_0", targets, scheme, True),), (), None)


def found(findings) -> list[tuple[str, str]]:
    return [(finding.severity, finding.check) for finding in findings]


def group(**changes: object) -> dict:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    return {"targets": ["Linear"], "format": "float-quantized", "weights": weights, **changes}


@pytest.mark.parametrize(
    ("top", "one", "expected"),
    [
        ("mixed-precision", group(), []),
        (None, group(format=None), [("error", "group-format")]),
        ("mixed-precision", group(format=None), [("error", "group-format")]),
        ("float-quantized", group(format=None), [("warning", "group-format")]),
        ("int-quantized", group(), [("error", "group-format")]),
    ],
)
def test_formats_of_groups(top, one, expected):
    written = {"quant_method": "compressed-tensors", "format": top, "config_groups": {"group_0": one}}
    _, findings = check_quantization(AuditFolder(Path(), config={"quantization_config": written}))
    assert found(findings) == expected
    assert all("--repair" in finding.remedy for finding in findings)


@pytest.mark.parametrize(("version", "newer"), [(1, False), (2, True), ("1", True), (None, True)])
def test_schema_of_our_object(version, newer):
    value = config() | {"clefquant": {"schema_version": version, "tables": "bf16"}}
    checks = [finding.check for finding in check_config(AuditFolder(Path(), config=value))]
    assert ("newer-schema" in checks) == newer


def test_names_in_the_index_that_leave_the_folder():
    for name in ("a/b.safetensors", "a\\b.safetensors", ".", ".."):
        folder = folder_of({}, index={"x": name})
        assert ("error", "path-escape") in found(check_index(folder)), name


def test_shards_without_an_index():
    folder = folder_of({"x": stored("BF16", 1)})
    assert found(check_index(folder)) == [("info", "missing-index")]
    folder.shards["other.safetensors"] = {"y": stored("BF16", 1)}
    assert found(check_index(folder)) == [("error", "missing-index")]


def test_bytes_that_do_not_fit_dtype_and_shape():
    tensors = {"a": stored("BF16", 3, at=(0, 6)), "b": stored("F32", 2, at=(6, 12))}
    (finding,) = check_layout(folder_of(tensors))
    assert (finding.check, finding.tensor) == ("damaged-header", "b")
    assert finding.message == "b has 6 bytes, not those of F32 [2]"


def test_layers_are_named_in_the_order_of_their_numbers():
    names = [f"{LAYER_PREFIX}{layer}.mlp.{leaf}.weight" for layer in (10, 2) for leaf in ("gate_proj", "up_proj")]
    groups = list(fused_groups({name: stored("BF16", 1) for name in names}))
    assert [members[0].split(".")[3] for members in groups] == ["2", "10"]
    assert fused_findings({name: stored("BF16", 1) for name in names}) == []


@pytest.mark.parametrize(("shape", "fits"), [((8, 1), True), ((8,), True), ((4,), False), ((1,), False), ((), False)])
def test_scales_per_row_may_be_flat(shape, fits):
    name = f"{LAYER_PREFIX}0.mlp.gate_proj"
    tensors = {f"{name}.weight": stored("F8_E4M3", 8, 4), f"{name}.weight_scale": stored("BF16", *shape)}
    folder = folder_of(tensors, config=config(intermediate_size=8, hidden_size=4))
    checks = [one.check for one in check_modules(folder, one_group(FP8, name)) if one.tensor == f"{name}.weight_scale"]
    assert checks == ([] if fits else ["wrong-shape"])


def test_quark_may_quantize_the_gates():
    name = f"{LAYER_PREFIX}0.linear_attn.in_proj_a"
    tensors = {f"{name}.weight": stored("F8_E4M3", 2, 2), f"{name}.weight_scale": stored("BF16", 2, 1)}
    for method, severity in (("quark", "warning"), ("compressed-tensors", "error")):
        findings = check_modules(folder_of(tensors), one_group(FP8, name, method=method))
        assert [one.severity for one in findings if one.check == "never-quantized"] == [severity]


def test_only_the_last_part_of_a_name_says_embedding():
    for name, linear in (("model.visual.pos_embed", False), ("model.visual.patch_embed.proj", True)):
        findings = check_modules(folder_of({f"{name}.weight": stored("BF16", 2, 2)}), one_group(FP8, "Linear"))
        assert found(findings) == ([("error", "group-match")] if linear else [])


def test_heads_and_scale_groups_over_ranks():
    name = f"{LAYER_PREFIX}0.mlp.{{}}.weight"
    tensors = {name.format(leaf): stored("U8", 1, 1) for leaf in ("gate_proj", "down_proj")}
    sizes = {"intermediate_size": 96, "hidden_size": 64}
    folder = folder_of(tensors, config=config(**sizes))
    scheme = Scheme("mxfp4-pack-quantized", "group", 4, group=32)
    messages = [finding.message for finding in check_ranks(folder, one_group(scheme, "Linear"), 2)]
    assert messages == [
        f"{LAYER_PREFIX}0.mlp.down_proj has 96 inputs, which 2 ranks do not divide in whole groups of 32"
    ]
    assert list(check_ranks(folder, one_group(scheme, "Linear"), 1)) == []


def test_who_reads_it():
    folder = folder_of({}, config={"clefquant": {}}, head_file="joint_head.safetensors")
    for tables, words in (({}, "plugin alone (int8 tables)"), (None, "plugin; stock vLLM from 0.33 on")):
        folder.tables = tables
        (finding,) = check_serving(folder, None)
        assert words in finding.message


def test_shapes_follow_the_switches_of_the_configuration():
    name = f"{LAYER_PREFIX}3.self_attn.q_proj.weight"
    assert text_shapes(config())[name] == (8, 2)
    assert text_shapes(config(attn_output_gate=False))[name] == (4, 2)


@pytest.mark.parametrize(
    ("inside", "outside", "expected"), [(None, True, True), (None, None, False), (False, True, False)]
)
def test_tied_tables(inside, outside, expected):
    assert tied({"tie_word_embeddings": outside, "text_config": {"tie_word_embeddings": inside}}) == expected
