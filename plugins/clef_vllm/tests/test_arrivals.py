"""Missing, surplus and ill-matched tensors, each refused with its name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clef_vllm import arrivals
from clef_vllm.release import ReleaseError


def test_missing_parameters_are_named() -> None:
    arrivals.check_loaded({"a.weight", "m.attn.k_scale"}, {"a.weight"})
    with pytest.raises(ReleaseError, match=r"1 parameters were not in the release.*lm_head\.weight"):
        arrivals.check_loaded({"a.weight", "language_model.lm_head.weight"}, {"a.weight"})


def test_head_names_and_shapes() -> None:
    good = {"a": torch.zeros(2), "b": torch.zeros(3)}
    path = Path("joint_head.safetensors")
    arrivals.check_head(good, dict(good), path)
    for bad, words in (({"a": good["a"]}, r"missing \['b'\]"), ({**good, "c": good["a"]}, r"unknown \['c'\]"),
                       ({**good, "b": torch.zeros(4)}, r"other shape \['b'\]")):  # fmt: skip
        with pytest.raises(ReleaseError, match=words):
            arrivals.check_head(good, bad, path)


FUSED = {"gate_up_proj": ["gate_proj", "up_proj"], "in_proj_qkvz": ["in_proj_qkv", "in_proj_z"], "o_proj": ["o_proj"]}


def watched(weights: dict[str, Any]) -> arrivals.WeightWatch:
    watch = arrivals.WeightWatch(FUSED)
    assert [name for name, _ in watch.observe(weights.items())] == list(weights)
    return watch


def test_fused_layers_need_all_parts() -> None:
    watched(
        {"m.gate_proj.weight": torch.zeros(1), "m.up_proj.weight": torch.zeros(1), "o_proj.weight": 1}
    ).check_fused()
    with pytest.raises(ReleaseError, match=r"has m\.gate_proj\.weight but not m\.up_proj\.weight"):
        watched({"m.gate_proj.weight": torch.zeros(1)}).check_fused()
    with pytest.raises(ReleaseError, match="one format for all"):
        watched({"m.gate_proj.weight_packed": torch.zeros(1), "m.up_proj.weight": torch.zeros(1)}).check_fused()


def test_fused_global_scales_must_agree() -> None:
    """Siblings with largest values 1.0 and 1.5 quantized apart (2688 and 1792) are refused, with both values."""
    pair = {"l.in_proj_qkv.weight_global_scale": torch.tensor([1792.0]),
            "l.in_proj_z.weight_global_scale": torch.tensor([1792.0])}  # fmt: skip
    watched(pair).check_fused()
    pair["l.in_proj_z.weight_global_scale"] = torch.tensor([2688.0])
    with pytest.raises(ReleaseError, match=r"in_proj_qkv.weight_global_scale is 1792, .* is 2688"):
        watched(pair).check_fused()


def test_tensors_without_a_parameter_are_named() -> None:
    loaded = {"l.gate_up_proj.weight", "l.o_proj.weight", "embed.weight"}
    used = ["l.gate_proj.weight", "l.up_proj.weight", "l.o_proj.weight", "embed.weight"]
    arrivals.check_skipped(used, loaded, FUSED, images=True)
    arrivals.check_skipped([*used, "mtp.fc.weight", "l.attn.k_scale", "l.rotary_emb.inv_freq"], loaded, FUSED, True)
    arrivals.check_skipped([*used, "visual.patch.weight"], loaded, FUSED, images=False)
    for name in ("visual.patch.weight", "l.o_proj.weight_packed", "l.gate_proj.input_global_scale"):
        with pytest.raises(ReleaseError, match=f"no use for 1 tensors of the release: {name}"):
            arrivals.check_skipped([*used, name], loaded, FUSED, images=True)
