"""The marker that stops readers which do not know the int8 tables: put in and taken out as text."""

import pytest

from clefquant.errors import InputError
from clefquant.export.marker import add_marker, remove_marker


@pytest.mark.parametrize("text", ["{}", '{"width": 8}\n', '{\n  "width": 8\n}\n', '{"width":8,"heads":[1]}'])
def test_what_is_put_in_comes_out_byte_for_byte(text):
    assert remove_marker(add_marker(text)) == text
    assert remove_marker(text) == text


def test_a_marker_at_the_end_leaves_no_comma():
    text = '{"width": 8, "requires_clef_vllm": "0.1.0"}'
    assert remove_marker(text) == '{\n  "width": 8\n}\n'


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"'])
def test_what_is_no_configuration(text):
    with pytest.raises(InputError, match="JSON"):
        add_marker(text)


def test_never_twice():
    with pytest.raises(InputError, match="already"):
        add_marker(add_marker("{}"))
