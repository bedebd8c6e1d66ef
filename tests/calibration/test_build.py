"""A set as a whole: the same bytes every time, nothing lost in silence, an interrupted build goes on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clefquant.calibration import partial
from clefquant.calibration.build import Built
from clefquant.calibration.finish import Job
from clefquant.calibration.mixture import Mixture
from clefquant.calibration.seen import Seen
from clefquant.calibration.stored import open_set, read_lines
from clefquant.calibration.workers import Workers
from clefquant.errors import CheckFailed, InputError
from clefquant.progress import SILENT
from clefquant.release.artefact import sha256_file
from clefquant.release.code import release_code
from clefquant.release.locks import locked
from clefquant.release.release import Release

from .conftest import record

Build = Callable[..., Built]
Lines = Callable[..., Path]


def file_source(path: Path, **more: Any) -> dict[str, Any]:
    return {"name": path.stem, "kind": "file", "path": path.name, **more}


def hashes(folder: Path) -> dict[str, str]:
    names = ("set.json", "records.jsonl", "rejected.jsonl", "lengths.png")
    return {name: sha256_file(folder / name) for name in names}


def many(count: int) -> list[dict[str, Any]]:
    return [
        {
            **record(f"message number {number} " + "word " * (number % 50)),
            "id": f"m{number}",
            "answers": {"late": number % 2 == 0},
        }
        for number in range(count)
    ]


def test_records_tokens_answers_and_order(build: Build, lines: Lines, tiny: Release) -> None:
    question = {"type": "choice", "instructions": "Which?", "criteria": {"b": None, "a": {"z": 1, "y": None}}}
    given = [
        {
            "id": "one",
            "state": {"b": 1, "a": None},
            "questions": {"team": question},
            "answers": {"team": "a"},
            "group": "g",
            "note": 1,
        },
        {"id": 2, "state": "text", "questions": {"q": {"type": "noul"}}},
    ]
    built = build(file_source(lines(given), order="first"))
    stored = open_set(built.path, tiny.path, release_code(tiny.path))
    first, second = stored
    assert first.record == {key: given[0][key] for key in ("state", "questions")}
    assert json.dumps(first.record) == json.dumps(
        {key: given[0][key] for key in ("state", "questions")}
    )  # key order too
    assert (first.record_id, first.group, first.answers) == ("records/one", "g", {"team": "a"})
    assert (second.record_id, second.group, second.answers) == ("records/2", "records", {})
    assert (len(stored), stored.tokens) == (2, first.tokens + second.tokens)
    code = stored.code
    for item in stored:
        tokenizer = stored.encoder.tokenizer.tokenizer
        assert item.encoded == code.encode_record(tokenizer, {**item.record, "id": item.record_id})


def test_gold_answers_are_not_in_the_prompt(build: Build, lines: Lines) -> None:
    without = build(file_source(lines(many(3), "a.jsonl"), name="x"), out="a")
    bare = [{key: value for key, value in item.items() if key != "answers"} for item in many(3)]
    other = build(file_source(lines(bare, "b.jsonl"), name="x"), out="b")
    assert [a["tokens"] for a in read_lines(without.path)] == [b["tokens"] for b in read_lines(other.path)]


def test_same_seed_same_bytes_whatever_the_workers(build: Build, lines: Lines) -> None:
    lines(many(400) + [{"state": "no questions"}] * 5 + many(3))
    sources = [
        {"name": "file", "kind": "file", "path": "records.jsonl", "count": 300},
        {"name": "game", "kind": "generator", "family": "game", "count": 20},
        {"name": "logs", "kind": "event_log", "tokens": [200, 900], "count": 4},
    ]
    one = build(*sources, out="one", workers=1)
    assert hashes(build(*sources, out="again", workers=1).path) == hashes(one.path)
    assert hashes(build(*sources, out="three", workers=3).path) == hashes(one.path)
    other = build(*sources, out="other", seed=1)
    assert sha256_file(other.path / "records.jsonl") != sha256_file(one.path / "records.jsonl")


def test_two_commands_do_not_build_one_set(build: Build, lines: Lines, tmp_path: Path) -> None:
    out = tmp_path / "set"
    with (
        locked(out, tmp_path / ".set.building.lock"),
        pytest.raises(InputError, match=f"another command is writing {out}"),
    ):
        build(file_source(lines(many(2))))


@pytest.mark.parametrize("stop_at", [0, 7, 25, 59])
def test_an_interrupted_build_goes_on(
    build: Build, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    monkeypatch.setattr(partial, "CHECKPOINT_RECORDS", 10)
    source = [
        file_source(lines([*many(40), {"bad": 1}, *many(2)]), order="first"),
        {"name": "g", "kind": "generator", "family": "game", "count": 20},
    ]
    whole = hashes(build(*source, out="whole").path)
    prepared, seen = Workers.prepared, 0

    def cut(self: Workers, *arguments: Any) -> Any:
        nonlocal seen
        for outcome in prepared(self, *arguments):
            if seen == stop_at:
                raise KeyboardInterrupt
            seen += 1
            yield outcome

    monkeypatch.setattr(Workers, "prepared", cut)
    with pytest.raises(KeyboardInterrupt):
        build(*source)
    assert not (tmp_path / "set").exists()
    counted: list[int] = []
    monkeypatch.setattr(Workers, "prepared", lambda self, *a: (counted.append(1) or o for o in prepared(self, *a)))
    assert hashes(build(*source).path) == whole
    assert len(counted) <= 63 - stop_at // 10 * 10
    assert not list(tmp_path.glob(".*building"))


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("save", [1, 2, 3])
def test_a_build_cut_off_when_it_saves_goes_on(
    build: Build, lines: Lines, monkeypatch: pytest.MonkeyPatch, save: int, saved: bool
) -> None:
    """Hashes that last without the state that counts their records would make duplicates of these records."""
    source = [file_source(lines(many(20)), order="first"), file_source(lines(many(25), "more.jsonl"), order="first")]
    whole = hashes(build(*source, out="whole").path)
    saves, commit = 0, Seen.commit

    def cut(self: Seen, state: dict[str, Any]) -> None:
        nonlocal saves
        saves += 1
        if saves != save or saved:
            commit(self, state)
        if saves == save:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Seen, "commit", cut)
        with pytest.raises(KeyboardInterrupt):
            build(*source)
    assert hashes(build(*source).path) == whole


def test_another_seed_or_a_changed_file_starts_anew(
    build: Build, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(many(5))
    with monkeypatch.context() as patch:
        patch.setattr("clefquant.calibration.build.finish", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(file_source(path))
    assert list(tmp_path.glob(".*building"))
    lines(many(3))
    assert build(file_source(path)).report["records"] == 3


def test_bad_records_are_counted_with_place_and_reason(build: Build, lines: Lines) -> None:
    path = lines([record(), {"state": 1, "questions": {}}, {**record(), "answers": {"late": "maybe"}}, record("other")])
    with path.open("ab") as file:
        file.write(b'{"state": "x",}\n{"state": "\\ud800", "questions": {"q": {"type": "noul"}}}\n')
    built = build(file_source(path, order="first"))
    assert (built.report["records"], built.report["rejected"]) == (2, 4)
    rejected = [json.loads(line) for line in (built.path / "rejected.jsonl").read_text().splitlines()]
    assert [item["place"] for item in rejected] == [f"records.jsonl line {number}" for number in (2, 3, 5, 6)]
    for item, reason in zip(
        rejected, ("at least one question", "'maybe' is no option", "a comma before the end", "U+D800"), strict=True
    ):
        assert reason in item["reason"]
    assert any("4 rejected, first records.jsonl line 2" in warning for warning in built.report["warnings"])


def test_strict_stops_at_the_first(build: Build, lines: Lines, tmp_path: Path) -> None:
    path = lines([record(), {"state": 1}, {"state": 2}])
    with pytest.raises(InputError, match=r"records\.jsonl line 2: \"questions\" must be an object .*--strict"):
        build(file_source(path, order="first"), strict=True)
    assert not (tmp_path / "set").exists()


def test_fewer_than_asked_is_said_and_none_is_refused(build: Build, lines: Lines) -> None:
    built = build(file_source(lines(many(37)), count=512))
    assert built.report["records"] == 37
    assert any("37 records of 512 asked" in warning for warning in built.report["warnings"])
    with pytest.raises(InputError, match="not one record is left of test"):
        build(file_source(lines([], "empty.jsonl")), out="empty")
    with pytest.raises(InputError, match=r"not one record is left.*1 rejected"):
        build(file_source(lines([{"state": 1}], "bad.jsonl")), out="bad")


def test_rejected_rows_are_replaced_by_others(build: Build, lines: Lines) -> None:
    mixed = [item for pair in zip(many(50), [{"broken": 1}] * 50, strict=True) for item in pair]
    built = build(file_source(lines(mixed), count=40))
    assert built.report["records"] == 40
    assert built.report["rejected"] > 0


def test_duplicates_and_doubled_ids(build: Build, lines: Lines) -> None:
    same = [record("twice"), record("twice"), {"questions": record()["questions"], "state": "twice"}]
    built = build(file_source(lines([*same, {**record("a"), "id": "x"}, {**record("b"), "id": "x"}]), order="first"))
    assert (built.report["records"], built.report["duplicates"], built.report["rejected"]) == (2, 2, 1)
    assert "the id 'records/x' is taken" in built.report["sources"][0]["rejections"][0]["reason"]


def test_one_option_is_said(build: Build, lines: Lines) -> None:
    one = record(q={"type": "choice", "instructions": "Which?", "criteria": {"only": None}})
    assert any("one option" in warning for warning in build(file_source(lines([one]))).report["warnings"])


def test_cut_states_are_said(build: Build, lines: Lines) -> None:
    built = build(file_source(lines([record("x" * 50_000), record("short")]), order="first"), max_length=1000)
    assert built.report["truncated"] == 1
    assert built.report["lengths"]["longest"] == 1000
    assert next(read_lines(built.path))["record"]["state"] == "x" * 50_000
    assert any("lost their end: 1 (" in warning for warning in built.report["warnings"])


def test_states_of_a_fixed_length(build: Build, lines: Lines) -> None:
    built = build(
        file_source(
            lines([record("word " * number) for number in (2, 50, 60)]), max_state_tokens=32, min_state_tokens=32
        )
    )
    assert (built.report["records"], built.report["rejected"], built.report["truncated"]) == (2, 1, 0)
    assert len({len(line["tokens"]) for line in read_lines(built.path)}) == 1


def test_overlap_is_refused_or_dropped(build: Build, lines: Lines, tmp_path: Path) -> None:
    evaluation = build(
        file_source(lines([record("The  Parcel\nnever came"), record("other")], "eval.jsonl"), order="first"),
        out="eval",
    )
    ours = file_source(
        lines([record({"text": "the parcel never came"}, other={"type": "noul"}), record("new")], "ours.jsonl"),
        order="first",
    )
    with pytest.raises(CheckFailed, match=r"1 records hold what .*eval holds: ours/000000 \(= eval/000000\)"):
        build(ours, against=[evaluation.path])
    assert not (tmp_path / "set").exists()
    built = build(ours, against=[evaluation.path], drop_overlap=True)
    assert (built.report["records"], built.report["overlapping"]) == (1, 1)
    assert [line["record"]["state"] for line in read_lines(built.path)] == ["new"]


def test_much_shorter_than_the_evaluation_set_is_said(build: Build, lines: Lines) -> None:
    evaluation = build(file_source(lines([record("long " * 500)], "eval.jsonl")), out="eval")
    built = build(file_source(lines([record("short")], "ours.jsonl")), against=[evaluation.path])
    assert any("long inputs would be calibrated by guessing" in warning for warning in built.report["warnings"])


def test_a_source_that_is_missing(build: Build, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    from clefquant.errors import PrerequisiteError

    def missing(*_: Any) -> Any:
        raise PrerequisiteError("the package is not installed")

    monkeypatch.setattr("clefquant.calibration.public_text.rows", missing)
    text = {"name": "spam", "kind": "public_text", "dataset": "sms_spam", "count": 3}
    with pytest.raises(PrerequisiteError):
        build(text, out="refused")
    gone = {"name": "gone", "kind": "file", "path": "none.jsonl", "optional": True}
    built = build(file_source(lines(many(2))), {**text, "optional": True}, gone)
    assert any("gone: left out: there is no" in warning for warning in built.report["warnings"])
    assert any("spam: left out: the package is not installed" in warning for warning in built.report["warnings"])


def test_request_logs(build: Build, lines: Lines) -> None:
    request = {"model": "clef", **record("from a log")}
    path = lines([request, {"request": {"model": "clef", **record("wrapped")}, "response": {}}, [1], {"model": "clef"}])
    built = build({"name": "log", "kind": "requests", "path": path.name, "order": "first"})
    assert [line["record"]["state"] for line in read_lines(built.path)] == ["from a log", "wrapped"]
    assert built.report["rejected"] == 2


def test_output_that_exists_is_refused(build: Build, lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "kept").touch()
    with pytest.raises(InputError, match="is not empty"):
        build(file_source(lines(many(1))))
    shutil.rmtree(tmp_path / "set")
    assert build(file_source(lines(many(1))), progress=SILENT).path.is_dir()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"kind": "generator", "family": "poems", "count": 1}, "last: there is no family 'poems'; use one of routing"),
        ({"kind": "file", "path": "none.jsonl"}, r"last: there is no .*none\.jsonl"),
        ({"kind": "images", "path": "none", "questions": record()["questions"]}, "last: there is no .*none"),
        ({"kind": "file", "path": "records.jsonl", "adapter": "glue"}, "there is no adapter 'glue'"),
    ],
)
def test_the_whole_job_is_checked_first(
    build: Build, lines: Lines, tmp_path: Path, source: dict[str, Any], reason: str
) -> None:
    path = lines(many(2))
    with pytest.raises(InputError, match=reason):
        build(file_source(path), {"name": "last", **source})
    assert not list(tmp_path.glob(".*building"))


def test_two_sets_of_one_name_are_both_parents(build: Build, lines: Lines, tiny: Release, tmp_path: Path) -> None:
    sources = [file_source(lines([record(f"text {number}")], f"{number}.jsonl")) for number in range(2)]
    sets = [build(source, out=f"run{number}/evaluation").path for number, source in enumerate(sources)]
    mixture = Mixture.model_validate({"name": "m", "sources": sources, "folder": str(tmp_path)})
    parents = Job(tiny, mixture, "calibration", 0, tuple(sets), False).parents
    assert len({parents[f"against {path}"] for path in sets}) == 2
