"""The one-minute answer: levels, sentences, and what is never claimed."""

import pytest

from clefquant.verify.verdict import verdict


def figure(value, low=None, high=None):
    return {"value": value, "low": value if low is None else low, "high": value if high is None else high}


def a_row(**changed):
    base = {
        "questions": 1000, "flips": 10, "near_ties": 50, "confident": 800, "confident_flips": 1, "nan": 0,
        "nan_reference": 0, "one_option": 0, "agreement": figure(0.99, 0.98, 0.995), "agreement_clear": figure(0.998),
        "kl": figure(0.0015, 0.001, 0.002), "confident_flip_rate": figure(0.00125, 0, 0.004),
        "accuracy_reference": figure(0.84), "accuracy": figure(0.842), "accuracy_change": figure(0.002, -0.01, 0.012),
    }  # fmt: skip
    return {**base, **changed}


NOISE = [{"agreement": figure(0.998), "kl": figure(1e-4)}]


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({}, "yes"),
        ({"agreement": figure(0.99, 0.95, 1.0)}, "probably"),
        ({"kl": figure(0.002, 0.0, 0.02)}, "probably"),
        ({"agreement": figure(0.97, 0.96, 0.98)}, "care"),
        ({"kl": figure(0.02, 0.01, 0.025)}, "care"),
        ({"confident_flip_rate": figure(0.01)}, "care"),
        ({"accuracy_change": figure(-0.02, -0.03, -0.01)}, "care"),
        ({"agreement": figure(0.9)}, "no"),
        ({"kl": figure(0.1)}, "no"),
        ({"nan": 1}, "no"),
        ({"agreement": None}, "no"),
    ],
)
def test_levels(changed, level):
    assert verdict(a_row(**changed), NOISE, 30, 10, 0.001, None).level == level


def test_sentences():
    found = verdict(a_row(one_option=2), NOISE, 8, 10, 0.8, None)
    assert found.headline.startswith("Yes, ship it")
    text = " ".join(found.reasons)
    assert "Of 1,000 answers, 990 stay the same (99.0 %; 95 % interval 98.0–99.5 %)" in text
    assert "10 change; 8 of them were practically a tie in BF16." in text
    assert "Of 800 answers that BF16 gives with confidence (a lead above 20 points), 1 changes." in text
    assert "8 lost, 10 won" in text
    assert "no difference that this set can show" in text
    assert "keeps 99.8 % of its own answers (KL 0.0001)" in text
    assert "2 questions with a single option are left out." in text


def test_better_than_bf16_is_never_claimed():
    better = a_row(accuracy_change=figure(0.03, 0.01, 0.05))
    assert "not a gain to claim" in " ".join(verdict(better, NOISE, 2, 40, 1e-6, None).reasons)
    inside = a_row(kl=figure(5e-5))
    assert "within that noise" in " ".join(verdict(inside, NOISE, 0, 0, 1.0, None).reasons)


def test_a_gate_decides():
    failed = verdict(a_row(), NOISE, 0, 0, 1.0, ["All: kl <= 0.001 — found 0.0015."])
    assert failed.level == "no"
    assert failed.reasons[0] == "All: kl <= 0.001 — found 0.0015."
    assert verdict(a_row(kl=figure(1.0)), NOISE, 0, 0, 1.0, []).level == "yes"


def test_sets_without_gold():
    found = verdict(a_row(accuracy_change=None), NOISE, 0, 0, 1.0, None)
    assert "accuracy is not known" in " ".join(found.reasons)
