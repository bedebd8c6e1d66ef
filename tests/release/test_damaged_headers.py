"""Headers and indexes that are not what they should be: refused in words, whatever they hold."""

import json
import struct

import pytest

from clefquant.errors import InputError
from clefquant.export.audit import audit
from clefquant.release.headers import read_backbone, read_header

SOUND = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def weights(folder, header: object, body: bytes = bytes(4), length: int | None = None):
    text = header if isinstance(header, str) else json.dumps(header)
    size = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + text.encode() + body)
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("[]", "no JSON object"), ('"x"', "no JSON object"), ("{]", "damaged header"), ("[" * 100_000, "recursion"),
        ({"a": 3}, "not described by"), ({"a": {}}, "not described by"), ({"a": {**SOUND, "dtype": 3}}, "not desc"),
        ({"a": {**SOUND, "shape": 4}}, "not described by"), ({"a": {**SOUND, "shape": [-4]}}, "not described by"),
        ({"a": {**SOUND, "shape": [4.0]}}, "not described by"), ({"a": {**SOUND, "shape": [True]}}, "not described by"),
        ({"a": {**SOUND, "data_offsets": [4]}}, "not desc"), ({"a": {**SOUND, "data_offsets": None}}, "not desc"),
        ({"a": {**SOUND, "data_offsets": [-4, 4]}}, "not described by"),
        ({"a": {**SOUND, "data_offsets": [4, 0]}}, "ends before it begins"),
        ({"a": {**SOUND, "data_offsets": [0, 2**60]}}, "cut or overwritten"),
        ('{"a": 1, "a": 1}', "'a' is there twice"),
    ],
    ids=range(17),
)  # fmt: skip
def test_a_damaged_header(tmp_path, header, words):
    file = weights(tmp_path, header)
    with pytest.raises(InputError, match=words):
        read_header(file)
    with pytest.raises(InputError, match=words):
        read_backbone(tmp_path)
    assert any(finding.check == "truncated" and words in finding.message for finding in audit(tmp_path))


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**64 - 1])
def test_a_header_of_any_length(tmp_path, length):
    with pytest.raises(InputError, match="not a whole safetensors file"):
        read_header(weights(tmp_path, {"a": SOUND}, length=length))


def test_a_sound_header(tmp_path):
    found = read_header(weights(tmp_path, {"__metadata__": {"format": "pt"}, "a": SOUND}))
    assert (found["a"].dtype, found["a"].shape, found["a"].bytes) == ("U8", (4,), 4)


def test_a_folder_in_the_place_of_a_file(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_backbone(tmp_path)


@pytest.mark.parametrize(
    "index", ["x", [], {}, {"weight_map": "x"}, {"weight_map": {"a": ["b"]}}, {"weight_map": None}]
)
def test_an_index_without_a_map(tmp_path, index):
    weights(tmp_path, {"a": SOUND})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="no readable weight_map"):
        read_backbone(tmp_path)
    assert {"index", "unreadable"} & {finding.check for finding in audit(tmp_path)}


@pytest.mark.parametrize("name", ["", ".", "..", "../model.safetensors", "a/b"])
def test_an_index_that_names_no_file_of_the_folder(tmp_path, name):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InputError, match="leaves the release folder"):
        read_backbone(tmp_path)
