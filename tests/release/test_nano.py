"""Where the bundled model is written when nobody says where."""

import tempfile

import pytest

from clefquant.errors import PrerequisiteError
from clefquant.release.nano import cached_nano


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    found = cached_nano()
    assert found.is_relative_to(tmp_path / "other")
    assert (found / "model.safetensors").is_file()
    assert cached_nano() == found
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(PrerequisiteError, match="set XDG_CACHE_HOME"):
        cached_nano()
