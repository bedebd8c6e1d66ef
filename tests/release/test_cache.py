"""A Hub cache that cannot be written is told apart from a Hub that cannot be reached."""

import errno
import os

import pytest

from clefquant.errors import PrerequisiteError
from clefquant.release.cache import not_stored
from clefquant.release.release import open_release


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EROFS, "acme/clef cannot be stored at /home/.cache: Read-only file system. Set HF_HOME to a folder"),
        (errno.EACCES, "Permission denied. Set HF_HOME to a folder with space that can be written."),
        (errno.ENOSPC, "No space left on device. Free space there, or set HF_HOME to a folder with space"),
    ],
)
def test_a_model_that_cannot_be_stored(monkeypatch, number, words):
    def refuse(_):
        raise OSError(number, os.strerror(number), "/home/.cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(PrerequisiteError) as told:
        open_release("acme/clef")
    assert words in str(told.value)


def test_what_is_no_matter_of_the_cache():
    assert not_stored("x", OSError("no connection")) is None
    assert not_stored("x", ConnectionRefusedError(errno.ECONNREFUSED, "refused")) is None
    assert not_stored("x", ValueError()) is None
