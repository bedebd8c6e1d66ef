"""Stages are done once per set of inputs, and again when something they read changes."""

import json

import pytest

from clefquant import __version__
from clefquant.pipeline.journal import Journal
from clefquant.pipeline.memory import forget_peak, peak_bytes


class Told(list):
    """Keeps what a view would draw."""

    def kept(self, stage):
        self.append(("kept", stage))

    def started(self, stage, why):
        self.append(("started", stage, why))

    def finished(self, stage, seconds):
        self.append(("finished", stage))


def _journal(out, forced=()):
    journal = Journal(out, frozenset(forced), configuration="c" * 64)
    journal.watch = Told()
    return journal


def _write(calls):
    def work(target):
        target.mkdir(exist_ok=True)
        calls.append(target.name)
        return {"count": len(calls)}

    return work


def test_skips_what_was_done_from_the_same_inputs(tmp_path):
    calls = []
    assert _journal(tmp_path).stage("a", {"x": 1}, _write(calls)) == {"count": 1}
    again = _journal(tmp_path)
    assert again.stage("a", {"x": 1}, _write(calls)) == {"count": 1}
    assert again.watch == [("kept", "a")]
    assert calls == ["a"]
    assert set(_journal(tmp_path).seconds()) == {"a"}


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        ("changed input", "x changed"),
        ("new input", "y changed"),
        ("forced", "asked for"),
        ("output gone", "its folder is gone"),
    ],
)
def test_does_it_again_and_says_why(tmp_path, cause, why):
    calls = []
    first = _journal(tmp_path)
    first.stage("a", {"x": 1, "z": 3}, _write(calls))
    assert first.watch == [("started", "a", "not done yet"), ("finished", "a")]
    if cause == "output gone":
        (tmp_path / "a").rmdir()
    inputs = {"changed input": {"x": 2, "z": 3}, "new input": {"x": 1, "z": 3, "y": 0}}.get(cause, {"x": 1, "z": 3})
    again = _journal(tmp_path, ("a",) if cause == "forced" else ())
    again.stage("a", inputs, _write(calls))
    assert calls == ["a", "a"]
    assert again.watch[0] == ("started", "a", why)


@pytest.mark.parametrize(("inputs", "kept"), [({"x": 1}, True), ({"x": 2}, False)])
def test_partial_work_survives_an_interruption_but_no_other_inputs(tmp_path, inputs, kept):
    def interrupted(target):
        target.mkdir()
        (target / "half").write_text("work")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _journal(tmp_path).stage("a", {"x": 1}, interrupted, keeps_partial=True)
    seen = []

    def work(target):
        seen.append((target / "half").exists())
        target.mkdir(exist_ok=True)
        return {}

    journal = _journal(tmp_path)
    journal.stage("a", inputs, work, keeps_partial=True)
    assert seen == [kept]
    assert journal.watch[0][2] == ("was interrupted" if kept else "x changed")


@pytest.mark.parametrize("x", [1, 2])
def test_a_folder_that_was_half_discarded_is_never_taken_for_anything(tmp_path, monkeypatch, x):
    """Neither for the finished one of the inputs before nor for the unfinished one of the inputs now."""

    def fill(target):
        assert not target.exists()
        target.mkdir()
        (target / "a").touch()
        return {}

    def killed(folder):
        raise KeyboardInterrupt

    _journal(tmp_path).stage("a", {"x": 1}, fill, keeps_partial=True)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            _journal(tmp_path).stage("a", {"x": 2}, fill, keeps_partial=True)
    again = _journal(tmp_path)
    again.stage("a", {"x": x}, fill, keeps_partial=True)
    assert again.watch[0] == ("started", "a", "not done yet")


def test_a_forced_stage_goes_on_with_nothing(tmp_path):
    """Neither in its own folder nor in the hidden ones beside it, where sets and checkpoints grow."""

    def interrupted(target):
        for folder in (target, tmp_path / ".a.building", tmp_path / ".b.building"):
            folder.mkdir()
            (folder / "half").write_text("work")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _journal(tmp_path).stage("a", {"x": 1}, interrupted, keeps_partial=True)
    journal = _journal(tmp_path, ("a",))
    journal.stage("a", {"x": 1}, _write([]), keeps_partial=True)
    assert journal.watch[0] == ("started", "a", "asked for")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("half")] == [".b.building/half"]


def test_what_run_json_tells(tmp_path):
    _journal(tmp_path).stage("a", {"x": 1}, _write([]))
    value = json.loads((tmp_path / "run.json").read_text())
    assert value["parents"] == {"configuration": "c" * 64}
    stage = value["stages"]["a"]
    assert stage["done"]
    assert stage["seconds"] >= 0
    assert stage["peak_memory_bytes"] > 1 << 20
    assert stage["versions"]["clefquant"] == __version__
    assert len(stage["inputs"]["x"]) == 64


def test_the_peak_is_of_the_stage_and_not_of_the_process():
    large = bytearray(300 << 20)
    large[:: 1 << 12] = b"x" * len(large[:: 1 << 12])
    assert peak_bytes()["peak_memory_bytes"] > 300 << 20
    del large
    forget_peak()
    after = peak_bytes()["peak_memory_bytes"]
    again = bytearray(200 << 20)
    again[:: 1 << 12] = b"x" * len(again[:: 1 << 12])
    assert peak_bytes()["peak_memory_bytes"] >= after + (150 << 20)
