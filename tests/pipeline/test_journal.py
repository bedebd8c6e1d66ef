"""Stages are done once per set of inputs, and again when something they read changes."""

import pytest

from clefquant.pipeline.journal import Journal


def _journal(out, forced=()):
    return Journal(out, frozenset(forced), lambda _: None)


def _write(calls):
    def work(target):
        target.mkdir(exist_ok=True)
        calls.append(target.name)
        return {"count": len(calls)}

    return work


def test_skips_what_was_done_from_the_same_inputs(tmp_path):
    calls = []
    assert _journal(tmp_path).stage("a", {"x": 1}, _write(calls)) == {"count": 1}
    assert _journal(tmp_path).stage("a", {"x": 1}, _write(calls)) == {"count": 1}
    assert calls == ["a"]
    assert set(_journal(tmp_path).seconds()) == {"a"}


@pytest.mark.parametrize("cause", ["changed input", "forced", "output gone"])
def test_does_it_again(tmp_path, cause):
    calls = []
    _journal(tmp_path).stage("a", {"x": 1}, _write(calls))
    if cause == "output gone":
        (tmp_path / "a").rmdir()
    forced = ("a",) if cause == "forced" else ()
    _journal(tmp_path, forced).stage("a", {"x": 2 if cause == "changed input" else 1}, _write(calls))
    assert calls == ["a", "a"]


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

    _journal(tmp_path).stage("a", inputs, work, keeps_partial=True)
    assert seen == [kept]
