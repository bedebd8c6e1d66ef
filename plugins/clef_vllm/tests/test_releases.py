"""Releases that clefquant made from its nano, against the answers of its simulation (files are shared, not code).

CLEF_RELEASES names the folder that tests/contract/make_releases.py wrote; without it there is nothing to check.
"""

import json
import os
from pathlib import Path

import pytest

FOLDER = os.environ.get("CLEF_RELEASES")
NAMES = sorted(path.stem for path in Path(FOLDER).glob("*.json")) if FOLDER else []
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not NAMES, reason="CLEF_RELEASES names no folder of releases")]

# The engine computes in bfloat16, the simulation in float32; each release's file states what that alone changes.
TYPICAL_DIFFERENCE = 0.02
FLOORS = 2
CLEAR_MARGIN = 0.05


@pytest.mark.parametrize("name", NAMES)
def test_answers_equal_the_simulation(name, record_property):
    """The probe is answered at start; a release that does not match it never gets here."""
    from clef_vllm import ClefVLLM

    expected = json.loads((Path(FOLDER) / f"{name}.json").read_text())
    with ClefVLLM(str(Path(FOLDER) / name), max_model_len=2048, kv_cache_gib=1) as clef:
        found = clef.probabilities(expected["records"])
    differences, swapped = [], []
    for got, logits in zip(found, expected["logits"], strict=True):
        assert {q: set(o) for q, o in got.items()} == {q: set(o) for q, o in logits.items()}
        for question, options in logits.items():
            want = softmax(options)
            differences.append(max(abs(want[option] - got[question][option]) for option in want))
            first, second = sorted(want.values(), reverse=True)[:2]
            if first - second > CLEAR_MARGIN and max(want, key=want.get) != max(got[question], key=got[question].get):
                swapped.append(question)
    differences.sort()
    record_property("max |dp|", round(differences[-1], 4))
    record_property("p95 |dp|", round(differences[int(0.95 * len(differences))], 4))
    assert not swapped
    record_property("noise floor, bf16 against fp32 in transformers", round(expected["noise_floor"], 4))
    assert differences[-1] <= max(TYPICAL_DIFFERENCE, FLOORS * expected["noise_floor"])
    assert differences[int(0.95 * len(differences))] <= TYPICAL_DIFFERENCE


def softmax(logits):
    import math

    top = max(logits.values())
    weights = {option: math.exp(value - top) for option, value in logits.items()}
    return {option: weight / sum(weights.values()) for option, weight in weights.items()}
