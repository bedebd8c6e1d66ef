"""Mixtures as files: the published ones are whole, faults name their field."""

import json
from pathlib import Path

import pytest

from clefquant.calibration.mixture import Mixture, bundled_names, load_mixture
from clefquant.calibration.source_config import HubSource
from clefquant.calibration.sources.adapters import ADAPTERS
from clefquant.errors import InputError

TOTALS = {
    "kurcontko-672": 672, "kurcontko-eval-1400": 1400, "alpha-x-ai-374": 374, "alpha-x-ai-eval-686": 686,
    "pile-128x512": 128, "long": 128, "long-eval": 96, "nano": 128, "nano-eval": 160,
}  # fmt: skip


def test_published_mixtures_are_whole() -> None:
    assert sorted(TOTALS) == bundled_names()
    for name, total in TOTALS.items():
        mixture = load_mixture(name)
        assert mixture.name == name
        assert sum(count or 0 for count in mixture.asked().values()) == total, name
        assert mixture.split == ("evaluation" if "eval" in name else "calibration")
        for source in mixture.sources:
            if isinstance(source, HubSource):
                assert source.adapter is not None
                assert set(source.options) <= set(ADAPTERS[source.adapter].options())


def test_by_path_and_by_name_are_the_same() -> None:
    by_path = load_mixture("configs/mixtures/nano.yaml")
    assert by_path.model_dump() == load_mixture("nano").model_dump()


def test_shares_by_weight() -> None:
    sources = [
        {"name": name, "kind": "file", "path": "x.jsonl", **more}
        for name, more in (("a", {"weight": 2}), ("b", {}), ("c", {"count": 5}))
    ]
    assert Mixture.model_validate({"name": "m", "records": 10, "sources": sources}).asked() == {"a": 7, "b": 3, "c": 5}
    assert Mixture.model_validate({"name": "m", "sources": sources}).asked() == {"a": None, "b": None, "c": 5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a", "a mixture is a mapping"),
        ("sources: []", "sources: "),
        ("sources: [{kind: generator, name: a}]", r"sources\.0\.generator\.family: Field required"),
        ("sources: [{kind: lottery, name: a}]", "sources.0"),
        ("sources: [{kind: generator, name: a, family: game, cuont: 3}]", "cuont: Extra inputs"),
        ("sources: [{kind: generator, name: a, family: game, count: 0}]", "count"),
        ("sources: [{kind: generator, name: a, family: game, max_state_tokens: -1}]", "max_state_tokens"),
        (
            "sources: [{kind: generator, name: a, family: game}, {kind: generator, name: a, family: logs}]",
            "a is used twice",
        ),
        ("sources: [{kind: file, name: a, path: x, adapter: arc, columns: {}}]", "columns or adapter, not both"),
        ("sources: [\n", "cannot be read as YAML"),
    ],
)
def test_faults_name_their_field(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(InputError, match=reason):
        load_mixture(tmp_path / "m.yaml")


def test_no_such_mixture_lists_the_bundled_ones() -> None:
    with pytest.raises(InputError, match=r"there is no mixture nan: give a YAML file or one of alpha-x-ai-374"):
        load_mixture("nan")


@pytest.mark.parametrize("kind", [{"kind": "generator", "family": "game"}, {"kind": "event_log", "tokens": [64, 128]}])
def test_a_source_without_end_needs_a_count(tmp_path: Path, kind: dict[str, object]) -> None:
    file = tmp_path / "m.yaml"
    value: dict[str, object] = {"sources": [{"name": "logs", **kind}]}
    file.write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"m\.yaml: .*logs never ends by itself; give it a count, or the mixture"):
        load_mixture(file)
    file.write_text(json.dumps({**value, "records": 3}))
    assert load_mixture(file).asked() == {"logs": 3}
