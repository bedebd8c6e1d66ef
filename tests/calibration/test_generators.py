"""Generated families: determinism, valid answers, sides that do not overlap, lengths."""

import json
import re
from collections import Counter

import pytest

from clefquant.calibration.example import Example
from clefquant.calibration.generators import FAMILIES, game, generate, invoices, logs, routing
from clefquant.errors import InputError

MODULES = {"routing": routing, "invoices": invoices, "game": game, "logs": logs}


def options_of(question: dict) -> list[str]:
    if question["type"] == "noul":
        return ["true", "false"]
    if question["type"] == "choice":
        return list(question["criteria"])
    return [str(level) for level in range(len(question["criteria"]))]


def key(example: Example) -> str:
    return json.dumps(example.record, sort_keys=True)


def wordings(module: object) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    kinds = ("ASK_", "RULE", "KEY_RULE", "WANT", "DECOY")
    found = [value for name, value in vars(module).items() if name.startswith(kinds)]
    if module is routing:
        found += [*routing.TONES.values(), *routing.URGENCY]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_same_examples(family: str) -> None:
    assert list(generate(family, "train", 30, 3)) == list(generate(family, "train", 30, 3))
    assert list(generate(family, "train", 30, 3)) != list(generate(family, "train", 30, 4))
    assert list(generate(family, "train", 10, 3)) == list(generate(family, "train", 30, 3))[:10]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("split", ["train", "calibration", "evaluation"])
def test_answers_are_options_and_questions_one_to_six(family: str, split) -> None:
    for example in generate(family, split, 200, 0):
        assert example.group == family
        assert 1 <= len(example.record["questions"]) <= 6
        assert example.answers.keys() == example.record["questions"].keys()
        for name, question in example.record["questions"].items():
            assert example.answers[name] in options_of(question)
            assert question["instructions"]


@pytest.mark.parametrize("family", FAMILIES)
def test_sides_do_not_overlap(family: str) -> None:
    sides = [{key(e) for e in generate(family, split, 300, 0)} for split in ("train", "calibration", "evaluation")]
    assert not sides[0] & sides[1]
    assert not sides[0] & sides[2]
    assert not sides[1] & sides[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_held_out_frames_differ_but_use_known_words(family: str) -> None:
    def words(text: str) -> set[str]:
        return set(re.findall(r"[a-z]+", re.sub(r"\{\w+\}", " ", text.lower())))

    found = wordings(MODULES[family])
    shown = set().union(*(words(frame) for train, _ in found for frame in train))
    assert found
    for train, held in found:
        assert not set(train) & set(held)
        for frame in held:
            assert words(frame) <= shown, frame


def test_held_out_frames_are_asked_in_evaluation_only() -> None:
    for family, module in MODULES.items():
        asked = {
            split: {q["instructions"] for e in generate(family, split, 200, 1) for q in e.record["questions"].values()}
            for split in ("train", "evaluation")
        }
        wordings_held = [value[1] for name, value in vars(module).items() if name.startswith("ASK_")]
        fixed = {frame for frames in wordings_held for frame in frames if "{" not in frame}
        assert asked["evaluation"] & fixed
        assert not asked["train"] & fixed


def test_held_out_combinations() -> None:
    for pairs in (
        (routing.TRAIN_INTENTS, routing.EVALUATION_INTENTS),
        (invoices.TRAIN_PAIRS, invoices.EVALUATION_PAIRS),
        (game.TRAIN_PAIRS, game.EVALUATION_PAIRS),
        (logs.TRAIN_PAIRS, logs.EVALUATION_PAIRS),
    ):
        assert pairs[1]
        assert not set(pairs[0]) & set(pairs[1])


def test_every_type_and_both_kinds_of_state() -> None:
    examples = [e for family in FAMILIES for e in generate(family, "train", 200, 5)]
    kinds = Counter(q["type"] for e in examples for q in e.record["questions"].values())
    assert set(kinds) == {"noul", "choice", "score"}
    assert {type(e.record["state"]) for e in examples} >= {str, dict, list}
    sizes = [len(q["criteria"]) for e in generate("routing", "train", 600, 0) for q in e.record["questions"].values()
             if q["type"] == "choice"]  # fmt: skip
    assert min(sizes) == 2
    assert 60 < max(sizes) <= 77


def test_unknown_family() -> None:
    with pytest.raises(InputError, match="routing"):
        next(generate("chess", "train", 1, 0))
