"""Outputs appear whole or not at all."""

import pytest

from clefquant.errors import InputError
from clefquant.release.artefact import new_folder, read_json, write_json


def test_folder_appears_whole(folder):
    with new_folder(folder) as work:
        (work / "a").write_text("x")
        assert not folder.exists()
    assert (folder / "a").read_text() == "x"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_folder_does_not_appear_after_a_failure(folder, failure):
    with pytest.raises(failure), new_folder(folder) as work:
        (work / "a").write_text("x")
        raise failure
    assert list(folder.parent.iterdir()) == []


def test_refuses_a_folder_with_content(folder):
    folder.mkdir()
    (folder / "mine").write_text("keep")
    with pytest.raises(InputError, match="is not empty"), new_folder(folder):
        pass
    assert (folder / "mine").read_text() == "keep"


def test_refuses_a_file(folder):
    folder.write_text("keep")
    with pytest.raises(InputError, match="is a file"), new_folder(folder):
        pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "layout", "schema_version": 9}, "Update clefquant"),
        ({"kind": "run", "schema_version": 1}, "is a run, expected a layout"),
        ({"kind": "layout"}, "schema_version None"),
        ([], "is a list"),
    ],
)
def test_refuses_what_it_cannot_read(tmp_path, value, message):
    write_json(tmp_path / "x.json", value)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "x.json", "layout", 1)
