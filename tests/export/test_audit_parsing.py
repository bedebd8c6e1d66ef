"""Quantization configurations as they are parsed, and what a scheme says is stored."""

import pytest

from clefquant.export.audit.quantization import parse_quantization
from clefquant.export.audit.schemes import Scheme

_GLOBAL = "global_quant_config"


def compressed(weights: dict, inputs: dict | None = None, fmt: str | None = "float-quantized") -> Scheme:
    group = {"targets": ["Linear"], "format": fmt, "weights": weights, "input_activations": inputs}
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {"g": group}}
    return parse_quantization(config).groups[0].scheme


@pytest.mark.parametrize(
    ("weights", "inputs", "expected"),
    [
        ({"strategy": "channel"}, None, Scheme("float-quantized", "channel", 8)),
        (
            {"num_bits": 8, "strategy": "block", "block_structure": [128, 64]},
            {"dynamic": True},
            Scheme("float-quantized", "block", 8, block=(128, 64)),
        ),
        (
            {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False},
            {"dynamic": "local"},
            Scheme("float-quantized", "group", 4, 16, static_input=True, symmetric=False),
        ),
        (
            {"strategy": "channel", "group_size": -1},
            {"dynamic": False},
            Scheme("float-quantized", "channel", 8, static_input=True),
        ),
    ],
)
def test_groups_of_compressed_tensors(weights, inputs, expected):
    assert compressed(weights, inputs) == expected


@pytest.mark.parametrize(
    ("weight", "inputs", "expected"),
    [
        ({"dtype": "fp4", "qscheme": "per_group"}, {"is_dynamic": True}, Scheme("quark-mxfp4", "group", 4, 32)),
        (
            {"dtype": "fp4", "qscheme": "per_group", "group_size": 16},
            {"is_dynamic": False},
            Scheme("quark-mxfp4", "group", 4, 16, static_input=True),
        ),
        (
            {"dtype": "fp4", "qscheme": "per_group", "scale_format": "e4m3"},
            None,
            Scheme("quark-fp4-per_group", "per_group", 8),
        ),
        ({"dtype": "int8", "qscheme": "per_channel"}, None, Scheme("quark-int8", "channel", 8)),
    ],
)
def test_schemes_of_quark(weight, inputs, expected):
    (group,) = parse_quantization(
        {"quant_method": "quark", _GLOBAL: {"weight": weight, "input_tensors": inputs}}
    ).groups
    assert (group.name, group.scheme) == (_GLOBAL, expected)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (Scheme("float-quantized", "channel", 8, group=32), (6, 1)),
        (Scheme("float-quantized", "group", 8), (6, 1)),
        (Scheme("float-quantized", "group", 8, group=4), (6, 3)),
        (Scheme("float-quantized", "tensor", 8), (1,)),
        (Scheme("float-quantized", "block", 8, block=(4, 8)), (2, 2)),
    ],
)
def test_shapes_of_scales(scheme, expected):
    assert scheme.tensors(6, 12)["weight_scale"][1] == expected


@pytest.mark.parametrize(("bits", "numbers"), [(4, 3), (8, 5)])
def test_integers_are_packed_into_words_of_32_bits(bits, numbers):
    assert Scheme("pack-quantized", "channel", bits).tensors(6, 17)["weight_packed"][1] == (6, numbers)


def test_the_format_of_the_whole():
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
    config = {"quant_method": "compressed-tensors", "format": "naive-quantized", "config_groups": {"g": group}}
    parsed = parse_quantization(config)
    assert (parsed.top_format, parsed.groups[0].scheme.format) == ("naive-quantized", "naive-quantized")
