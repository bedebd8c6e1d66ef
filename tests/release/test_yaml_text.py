"""Text that is not YAML is refused in one way, whatever PyYAML raises."""

import pytest

from clefquant.calibration.mixture import load_mixture
from clefquant.errors import InputError
from clefquant.pipeline.config_file import read_config
from clefquant.release.yaml_text import parse_yaml
from clefquant.verify.gates import parse_limit, read_gate

NOT_YAML = [
    "a: [",
    "a: 2020-13-45",
    "!!int x",
    "!!float y",
    "!!timestamp z",
    "!!bool x",
    "{[1]: 2}",
    "[" * 20_000,
    "\x00",
]


def test_a_document():
    assert parse_yaml("a: [1, b, 2020-01-02]")["a"][:2] == [1, "b"]


@pytest.mark.parametrize("text", NOT_YAML, ids=range(len(NOT_YAML)))
def test_what_is_none(tmp_path, text):
    with pytest.raises(ValueError, match=r"."):
        parse_yaml(text)
    file = tmp_path / "file.yaml"
    file.write_text(text)
    for read in (read_config, load_mixture, read_gate):
        with pytest.raises(InputError, match=r"file\.yaml"):
            read(file)


@pytest.mark.parametrize("number", ["1.2.3", ".", "1.e", "+-1"])
def test_a_limit_that_is_no_number(number):
    with pytest.raises(InputError, match="is not MEASURE >= NUMBER"):
        parse_limit(f"kl <= {number}")


@pytest.mark.parametrize(("number", "value"), [("1", 1), ("1.", 1), (".5", 0.5), ("-2e-3", -0.002)])
def test_a_limit_that_is_one(number, value):
    assert parse_limit(f"kl <= {number}").limit == value
