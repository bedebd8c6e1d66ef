"""Configurations: every shipped one is valid, a wrong one is refused with its line."""

from pathlib import Path

import pytest

from clefquant.errors import InputError
from clefquant.pipeline.config import read_config

CONFIGS = Path(__file__).parents[2] / "configs"
GOOD = """\
model: nano
out: runs/x
calibration: {mixture: nano}
evaluation: {mixture: nano-eval}
scheme: fp8
"""


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path):
    read_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "colour: red\n", r"c.yaml:6: colour: Extra inputs"),
        (
            GOOD.replace("{mixture: nano}", "{seed: one, mixture: nano}"),
            r"c.yaml:3: calibration.seed: Input should be a valid integer",
        ),
        (GOOD.replace("model: nano\n", ""), r"c.yaml:1: model: Field required"),
        (GOOD.replace("scheme: fp8\n", ""), "give exactly one of scheme, layout and plan; found none"),
        (GOOD + "layout: x.json\n", "found scheme, layout"),
        ("- a\n", "holds a list"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_refusals(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(path)


def test_byte_order_mark_and_windows_lines(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_config(path).scheme == "fp8"
