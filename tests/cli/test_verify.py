"""``verify`` and ``compare`` as typed: results, files, exit codes, messages."""

import json

import pytest

from ..verify.conftest import records, write_set


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory, tiny_loaded):
    return write_set(tmp_path_factory.mktemp("sets") / "evaluation", tiny_loaded, records(2))


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture
def verified(clefquant, tiny, evaluation, reports):
    """Runs once, later calls find the answers."""

    def run(name, *more):
        return clefquant(
            "--json", "verify", tiny.path, "--against", tiny.path, "--eval", evaluation, "--out", reports / name, *more
        )

    return run


def test_json_for_programs_words_for_people(verified, reports):
    done = verified("one")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["agreement"] == 1.0
    assert result["kl"] <= 1e-9
    assert result["questions"] == 6
    assert sorted(result["paths"]) == ["numbers", "reference", "report", "tables"]
    assert "of 6 answers, 6 stay the same" in " ".join(done.err.lower().split())
    assert "next:" in done.err
    assert (reports / "one" / "report.html").is_file()


def test_a_failed_gate_is_exit_code_1_after_the_report(verified, tmp_path):
    (tmp_path / "gate.yaml").write_text("limits: [questions >= 100, nan == 0]")
    done = verified("one", "--gate", tmp_path / "gate.yaml")
    assert done.code == 1
    assert json.loads(done.out)["gate_passed"] is False
    assert "All: questions >= 100 — found 6" in done.err
    assert "Traceback" not in done.err
    (tmp_path / "gate.yaml").write_text("limits: [nan == 0]")
    assert verified("one", "--gate", tmp_path / "gate.yaml").code == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--backend", "fast"), 2, "unknown backend 'fast'"),
        (("--backend", "vllm"), 2, "needs --python"),
        (("--device", "tpu"), 2, "unknown device 'tpu'"),
        (("--engine", "[]"), 2, "is no JSON object"),
        (("--shard", "4/4"), 2, "not WORKER/WORKERS"),
        (("--shard", "0/2", "--ray", "auto"), 2, "leave --shard out"),
        (("--gate", "nowhere.yaml"), 2, "nowhere.yaml cannot be read"),
        (("--eval", "nowhere"), 2, "nowhere/set.json does not exist"),
        (("--sensitivity", "nowhere"), 2, "frontier.json does not exist"),
    ],
)
def test_refusals(verified, options, code, message):
    done = verified("refused", *options)
    assert done.code == code
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_compare(clefquant, verified, reports, tmp_path):
    assert verified("one").code == 0
    assert verified("two", "--seed", "1").code == 0
    out = tmp_path / "comparison"
    done = clefquant("--json", "compare", reports / "one", reports / "two" / "report.json", "--out", out)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert len(set(result["names"])) == 2
    assert result["differences"] == []
    assert {line[0] for line in result["lines"]} >= {"Verdict", "Size", "Mean KL, nats", "Accuracy %"}
    assert (out / "compare.html").read_text().startswith("<!DOCTYPE html>")
    assert "| Same answer as BF16 % | 100.00" in (out / "compare.md").read_text()
    again = clefquant("compare", reports / "one", reports / "two", "--out", out)
    assert again.code == 2
    assert "is not empty" in again.err
    alone = clefquant("compare", reports / "one", "--out", tmp_path / "x")
    assert alone.code == 2
    assert "at least two reports" in alone.err


def test_compare_says_when_figures_do_not_compare(clefquant, verified, reports, tmp_path):
    assert verified("one").code == 0
    other = json.loads((reports / "one" / "report.json").read_text())
    other["parents"]["set evaluation"] = "0" * 64
    (tmp_path / "report.json").write_text(json.dumps(other))
    done = clefquant("--json", "compare", reports / "one", tmp_path, "--out", tmp_path / "out")
    assert done.code == 0
    assert "different evaluation sets" in json.loads(done.out)["differences"][0]
    assert "different evaluation sets" in " ".join(done.err.split())
