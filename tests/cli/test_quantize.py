"""``clefquant quantize`` as people and programs see it."""

import json

import pytest


@pytest.fixture(scope="module")
def calibration(game_set):
    return game_set(3)


def test_a_dry_run_shows_the_plan_and_writes_nothing(clefquant, tiny, calibration, folder):
    found = clefquant(
        "--json", "quantize", "--model", tiny.path, "--scheme", "nvfp4", "--calibration", calibration, "--out", folder,
        "--dry-run",
    )  # fmt: skip
    plan = json.loads(found.out)
    assert (found.code, plan["formats"], plan["records"]) == (0, {"nvfp4": 8}, 3)
    assert "nothing was written" in found.err
    assert not list(folder.parent.iterdir())


def test_a_dry_run_promises_no_time_for_gptq(clefquant, tiny, calibration, folder):
    found = clefquant(
        "quantize", "--model", tiny.path, "--scheme", "fp8", "--calibration", calibration, "--out", folder,
        "--algorithm", "gptq", "--dry-run",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert "not foretold for this algorithm" in found.err


def test_headroom_is_shown_and_kept(clefquant, tiny, calibration, folder):
    found = clefquant(
        "quantize", "--model", tiny.path, "--scheme", "nvfp4", "--calibration", calibration, "--compare", calibration,
        "--out", folder,
    )  # fmt: skip
    kept = json.loads((folder / "input_statistics.json").read_text())
    assert found.code == 0, found.err
    assert set(kept["headroom"].values()) == {1.0}
    assert "larger inputs" not in found.err


def test_neither_scheme_nor_layout(clefquant, tiny, folder):
    found = clefquant("quantize", "--model", tiny.path, "--out", folder)
    assert found.code == 2
    assert "either --scheme" in found.err
