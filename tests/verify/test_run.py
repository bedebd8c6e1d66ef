"""The whole of verify on the tiny release: files, resuming, shards, gates, refusals."""

import json
import math
import shutil

import pytest

from clefquant.errors import CheckFailed, InputError
from clefquant.verify import chunks, reference
from clefquant.verify.chunks import Unfinished
from clefquant.verify.run import GateFailed, Options, verify

from .conftest import records, write_set

SMALL = Options(batch_tokens=1500)


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TOKENS", 1500)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quantized, tiny, evaluation):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_TOKENS", 1500)
        out = tmp_path_factory.mktemp("finished") / "report"
        return verify(quantized("nvfp4").path, tiny.path, [evaluation], out, options=SMALL)


def test_a_model_against_itself(tiny, evaluation, folder):
    report = verify(tiny.path, tiny.path, [evaluation], folder, options=SMALL)
    assert report.summary["agreement"] == 1.0
    assert report.summary["kl"] <= 1e-9
    assert report.summary["noise_agreement"] == 1.0
    assert report.summary["flips"] == 0


def test_report_holds_what_it_should(finished, quantized, tiny):
    value = json.loads(finished.json.read_text())
    assert value == finished.value
    assert "NaN" not in finished.json.read_text()
    assert value["schema_version"] == 1
    assert value["parents"]["candidate"] == quantized("nvfp4").fingerprint
    assert value["performance"] is None
    assert value["candidate"]["formats"] == {"nvfp4-pack-quantized": sum(len(unit.linears) for unit in tiny.units)}
    assert len(value["noise"]) == 2
    row = value["tables"]["all"][0]
    assert (row["records"], row["questions"], row["one_option"]) == (6, 18, 1)
    assert 0 < row["kl"]["value"] < 1
    assert row["kl"]["low"] <= row["kl"]["value"] <= row["kl"]["high"]
    assert value["worst"][0]["kl"] == max(one["kl"] for one in value["worst"])
    assert math.isclose(sum(option["p"] for option in value["worst"][0]["options"]), 1, rel_tol=1e-6)
    text = finished.markdown.read_text()
    assert "| reviews |" in text
    assert "| All |" in text
    assert "no speed is given" in text
    page = finished.html.read_text()
    assert "&lt;b&gt;late&lt;/b&gt;" in page  # a record's text is never markup
    assert "<b>late</b>" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_killed_and_resumed_is_the_same_report(finished, quantized, tiny, evaluation, folder, monkeypatch):
    written, real = [], chunks.write_answers

    def dies(path, *rest):
        if len(written) == 7:
            raise KeyboardInterrupt
        written.append(path)
        real(path, *rest)

    monkeypatch.setattr(chunks, "write_answers", dies)
    with pytest.raises(KeyboardInterrupt):
        verify(quantized("nvfp4").path, tiny.path, [evaluation], folder, options=SMALL)
    assert not (folder / "report.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("part-*.parquet")}
    assert len(kept) == 7
    monkeypatch.setattr(chunks, "write_answers", lambda path, *rest: (written.append(path), real(path, *rest)))
    again = verify(quantized("nvfp4").path, tiny.path, [evaluation], folder, options=SMALL)
    assert not set(written[7:]) & set(kept), "a finished chunk was computed again"
    assert again.value == finished.value
    assert again.html.read_bytes() == finished.html.read_bytes()
    assert not (folder / ".parts" / "logits").exists()


def test_two_shards_give_the_same_report(finished, quantized, tiny, evaluation, folder):
    arguments = (quantized("nvfp4").path, tiny.path, [evaluation], folder)
    with pytest.raises(Unfinished, match="belong to other shards"):
        verify(*arguments, options=Options(batch_tokens=1500, shard=(1, 2)))
    report = verify(*arguments, options=Options(batch_tokens=1500, shard=(0, 2)))
    assert report.value == finished.value


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(reference, "package_versions", lambda: {"torch": "0"}),
        lambda patch: patch.setattr(reference, "__version__", "0"),
        lambda patch: patch.setattr(reference, "chip", lambda _: "another GPU"),
    ],
)
def test_answers_of_other_versions_are_not_used_again(
    finished, quantized, tiny, evaluation, tmp_path, monkeypatch, change
):
    out = shutil.copytree(finished.json.parent, tmp_path / "later")
    change(monkeypatch)
    verify(quantized("nvfp4").path, tiny.path, [evaluation], out, options=SMALL)
    assert len(list(out.glob("candidate-*.parquet"))) == len(list(out.glob("reference-*.parquet"))) == 2


def test_finished_answers_are_used_again(finished, quantized, tiny, evaluation, monkeypatch):
    monkeypatch.setattr("clefquant.verify.runner.load_release", None)
    monkeypatch.setattr("clefquant.verify.runner.load_simulated", None)
    again = verify(quantized("nvfp4").path, tiny.path, [evaluation], finished.json.parent, options=SMALL)
    assert again.value == finished.value


def test_reference_file_stands_for_the_release(finished, quantized, evaluation, folder, monkeypatch):
    monkeypatch.setattr("clefquant.verify.runner.load_release", None)
    again = verify(quantized("nvfp4").path, finished.reference, [evaluation], folder, options=SMALL)
    assert again.value == finished.value


def test_reference_of_other_sets_is_refused(finished, quantized, tiny_loaded, folder, tmp_path):
    other = write_set(tmp_path / "other", tiny_loaded, records(2, seed=9))
    with pytest.raises(InputError, match="other evaluation sets"):
        verify(quantized("nvfp4").path, finished.reference, [other], folder)


def test_gate_fails_after_the_report_is_written(finished, quantized, tiny, evaluation, tmp_path):
    out = shutil.copytree(finished.json.parent, tmp_path / "gated")
    (tmp_path / "gate.yaml").write_text("limits: [kl <= 1e-12, agreement >= 0]")
    with pytest.raises(GateFailed, match=r"All: kl <= 1e-12 — found \d") as failed:
        verify(quantized("nvfp4").path, tiny.path, [evaluation], out, gate=tmp_path / "gate.yaml", options=SMALL)
    assert failed.value.exit_code == 1
    value = json.loads(failed.value.report.json.read_text())
    assert [limit["passed"] for limit in value["gate"]["limits"]] == [False, True]
    assert value["verdict"]["level"] == "no"
    assert failed.value.report.summary["gate_passed"] is False


def test_two_sets_and_a_record_in_both(quantized, tiny, tiny_loaded, evaluation, folder, tmp_path):
    more = write_set(tmp_path / "more", tiny_loaded, records(2, seed=3), prefix="m")
    report = verify(quantized("fp8").path, tiny.path, [evaluation, more], folder, options=SMALL)
    assert report.summary["records"] == 8
    assert [one["name"] for one in report.value["sets"]] == ["evaluation", "more"]
    same = write_set(tmp_path / "same", tiny_loaded, records(2, seed=3))
    with pytest.raises(CheckFailed, match="record id 'r0' is there more than once"):
        verify(quantized("fp8").path, tiny.path, [evaluation, same], tmp_path / "x")


def test_refusals(finished, quantized, tiny, evaluation, tmp_path):
    nvfp4, out = quantized("nvfp4").path, tmp_path / "x"
    with pytest.raises(InputError, match="is quantized itself"):
        verify(tiny.path, nvfp4, [evaluation], out)
    with pytest.raises(InputError, match="unknown backend 'fast'"):
        verify(nvfp4, tiny.path, [evaluation], out, backend="fast")
    with pytest.raises(InputError, match="needs --python"):
        verify(nvfp4, tiny.path, [evaluation], out, backend="vllm")
    with pytest.raises(InputError, match="at least one evaluation set"):
        verify(nvfp4, tiny.path, [], out)
    with pytest.raises(InputError, match="report of another release"):
        verify(quantized("fp8").path, tiny.path, [evaluation], finished.json.parent)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="something else"):
        verify(nvfp4, tiny.path, [evaluation], tmp_path / "full")
    assert (tmp_path / "full" / "thesis.txt").exists()


def test_restart_discards_our_files_alone(finished, quantized, tiny, evaluation, tmp_path):
    out = shutil.copytree(finished.json.parent, tmp_path / "again")
    (out / "notes.txt").write_text("mine")
    report = verify(
        quantized("fp8").path, tiny.path, [evaluation], out, options=Options(batch_tokens=1500, restart=True)
    )
    assert report.value["parents"]["candidate"] == quantized("fp8").fingerprint
    assert (out / "notes.txt").exists()
    assert len(list(out.glob("candidate-*.parquet"))) == 1
