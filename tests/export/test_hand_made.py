"""Files written or changed by hand, and weights whose header does not tell the truth."""

import json
import struct

import pytest

from clefquant.errors import InputError
from clefquant.export.audit import audit
from clefquant.export.audit.quantization import parse_quantization
from clefquant.export.inspection import inspect
from clefquant.recipes.layout import read_layout, uniform_layout


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "layout"}, {"kind": "layout", "units": "x"}, {"kind": "layout", "units": {"layers.0.mlp": []}},
        {"kind": "layout", "units": {"mlp": "fp8"}}, {"kind": "layout", "units": {}, "bytes": "many"},
        {"kind": "layout", "units": {}, "bytes": 10**400}, {"kind": "verify report", "tables": {"all": 3}},
        {"kind": "sensitivity table", "entries": [3]},
    ],
    ids=range(8),
)  # fmt: skip
def test_what_is_not_what_it_calls_itself(tmp_path, value):
    (tmp_path / "x.json").write_text(json.dumps(value))
    with pytest.raises(InputError):
        inspect(str(tmp_path / "x.json"))


@pytest.mark.parametrize("kind", [["layout"], {"layout": 1}, None, 3])
def test_a_kind_that_is_no_text(tmp_path, kind):
    (tmp_path / "x.json").write_text(json.dumps({"kind": kind}))
    with pytest.raises(InputError, match="none of what inspect reads"):
        inspect(str(tmp_path / "x.json"))


@pytest.mark.parametrize("change", [{"budget": 3}, {"measured": "fp8"}, {"measured": []}])
def test_a_layout_with_a_wrong_side_field(tiny, tmp_path, change):
    value = uniform_layout(tiny, "fp8").model_dump() | change
    (tmp_path / "layout.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match="budget must be text or null"):
        read_layout(tmp_path / "layout.json", tiny)


@pytest.mark.parametrize("shape", [[], [4, 1], [2, 2, 2], [2**62, 2**62], [0]])
@pytest.mark.parametrize("weight", [("U8", [2, 1]), ("F4", [2, 2]), ("I8", []), ("X9", [2]), ("I32", [2])])
def test_zero_scales_under_untrue_shapes(tmp_path, shape, weight):
    entries = {
        "m.weight": {"dtype": weight[0], "shape": weight[1], "data_offsets": [0, 2]},
        "m.weight_scale": {"dtype": "BF16", "shape": shape, "data_offsets": [2, 6]},
    }
    text = json.dumps(entries).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(6))
    assert {"zero-scale", "damaged-header"} <= {finding.check for finding in audit(tmp_path)}


@pytest.mark.parametrize("field", ["ignore", "targets"])
@pytest.mark.parametrize("value", [[None], "lm_head", {"lm_head": 1}, 3, [["lm_head"]]])
def test_lists_of_modules_that_are_none(field, value):
    group = {"weights": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    (group if field == "targets" else config)[field] = value
    with pytest.raises(ValueError, match=f"{field} is .* no list of module names"):
        parse_quantization(config)
    config = {"quant_method": "quark", "exclude": value, "global_quant_config": {"weight": {"dtype": "int8"}}}
    with pytest.raises(ValueError, match=r"exclude is .* no list of module names"):
        parse_quantization(config)
