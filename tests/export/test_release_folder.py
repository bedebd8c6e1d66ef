"""The release folder: what it holds, byte for byte, and what never appears half-written."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from clefquant.errors import CheckFailed, InputError, PrerequisiteError
from clefquant.export import plugin, release_folder
from clefquant.export.release_folder import export_release
from clefquant.export.sums import SUMS_FILE, release_files
from clefquant.export.tables import shrink_tables
from clefquant.export.verified import check_report, complete_card
from clefquant.release import shards
from clefquant.release.artefact import sha256_file
from clefquant.release.headers import read_backbone
from clefquant.release.release import open_release
from clefquant.verify.stored_report import RELEASE_KEY, measured_sha256


def _row(name: str, agreement: float, kl: float) -> dict:
    spread = {"low": 0.0, "high": 1.0}
    return {
        "name": name, "questions": 1358, "confident": 900, "confident_flips": 2, "tv": None,
        "agreement": {"value": agreement, **spread}, "kl": {"value": kl, **spread},
    }  # fmt: skip


REPORT = {
    "kind": "verify report",
    "schema_version": 1,
    "backend": {"kind": "simulate", "engine": "transformers, weights as stored", "device": "cpu"},
    "sets": [{"name": "evaluation", "records": 640}],
    "tables": {
        "all": [_row("all", 0.987, 0.0021)],
        "groups": [_row("routing", 0.98, 0.003), _row("logs", 0.99, 0.001)],
    },
    "noise": [_row("BF16 again", 1.0, 1e-9)],
    "performance": None,
    "gate": {"limits": [{"row": "all", "limit": "kl <= 0.003", "passed": True}]},
}


def test_weights_and_side_files_keep_their_bytes(mixed, release):
    source, written = read_backbone(mixed), read_backbone(release)
    assert sorted(source) == sorted(written)
    assert all(source[name].read() == written[name].read() for name in source)
    assert len({info.file for info in written.values()}) > 2
    for file in mixed.iterdir():
        if file.is_file() and not file.name.startswith("model"):
            assert (release / file.name).read_bytes() == file.read_bytes()


def test_tensors_start_aligned_and_shards_stay_under_the_limit(release):
    for name, info in read_backbone(release).items():
        assert info.start % {"F32": 4, "BF16": 2}.get(info.dtype, 1) == 0, name
    assert all(file.stat().st_size < 220_000 for file in release.glob("model*.safetensors"))


def test_checksums_cover_every_file_and_satisfy_sha256sum(release):
    listed = {line.split("  ", 1)[1] for line in (release / SUMS_FILE).read_text().splitlines()}
    assert listed == set(release_files(release))
    subprocess.run(["sha256sum", "--quiet", "--strict", "-c", SUMS_FILE], cwd=release, check=True)


def test_the_plugin_is_its_source_without_tests_and_builds(release):
    source = plugin.plugin_source()
    copied = {
        file.relative_to(release / "vllm_plugin") for file in (release / "vllm_plugin").rglob("*") if file.is_file()
    }
    assert copied == set(plugin.plugin_files(source))
    assert all(not {"tests", "build", "__pycache__"} & set(file.parts) for file in copied)


def test_an_export_repeats_byte_for_byte(mixed, tmp_path):
    first, second = (export_release(mixed, tmp_path / name) for name in "ab")
    assert first.sums_sha256 == second.sums_sha256 == sha256_file(first.path / SUMS_FILE)


def test_the_card_states_the_files_and_no_figure(release):
    text = (release / "README.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["base_model"] == "Cloudflare/clef-flash"
    assert head["base_model_relation"] == "quantized"
    assert head["license"] == "apache-2.0"
    assert None not in head.values()
    assert "NVFP4" in text
    assert "Not measured for this release" in text
    measured = re.findall(r"\d+(?:\.\d+)? ?(?:%|x faster|records/s|tok/s|ms\b)", text)
    assert measured == []


def test_figures_come_from_a_report_of_this_very_release(mixed, tmp_path):
    plain = export_release(mixed, tmp_path / "plain")
    report = tmp_path / "report.json"
    report.write_text(json.dumps({**REPORT, RELEASE_KEY: measured_sha256(plain.path)}))
    done = export_release(mixed, tmp_path / "with", report=report, repo="acme/nano")
    text = (done.path / "README.md").read_text()
    assert "| All | 1,358 | 98.7% | 0.0021 |" in text
    assert "weights as stored, on cpu; evaluation (640 records)" in text
    assert "TV" not in text
    assert "hf download acme/nano" in text
    assert "ORG/NAME" not in text
    assert measured_sha256(done.path) == measured_sha256(plain.path)
    complete_card(plain.path, report=report, repo="acme/nano")
    assert (plain.path / SUMS_FILE).read_text() == (done.path / SUMS_FILE).read_text()
    report.write_text(json.dumps({**REPORT, RELEASE_KEY: "0" * 64}))
    with pytest.raises(CheckFailed, match="another release"):
        export_release(mixed, tmp_path / "stale", report=report)
    assert not (tmp_path / "stale").exists()


def test_speed_is_on_the_card_only_when_an_engine_ran(mixed, tmp_path):
    plain = export_release(mixed, tmp_path / "plain")
    latency = {"tokens": "≤ 128", "median_tokens": 100, "requests": 20, "p50_ms": 12.5, "p95_ms": 20.0}
    whole = {"concurrency": "all at once", "records_per_s": 39.5, "tokens_per_s": 20000.0}
    speed = {"engine": "vLLM 0.32", "chip": "a chip", "throughput": whole, "latency": [latency]}
    report = tmp_path / "report.json"
    report.write_text(json.dumps({**REPORT, "performance": speed, RELEASE_KEY: measured_sha256(plain.path)}))
    complete_card(plain.path, report=report, repo=None)
    text = (plain.path / "README.md").read_text()
    assert "39.5 records/s" in text
    assert "on a chip" in text


def test_calibration_sources_and_licences_are_listed(mixed, tmp_path):
    calibration = tmp_path / "set"
    calibration.mkdir()
    source = {"name": "spam", "license": "CC BY 4.0", "origin": {"origin": "somewhere/spam"}, "records": 1200}
    header = {"kind": "calibration set", "schema_version": 1, "records": 1200, "tokens": 98765, "sources": [source]}
    (calibration / "set.json").write_text(json.dumps(header))
    done = export_release(mixed, tmp_path / "release", calibration=calibration)
    text = (done.path / "README.md").read_text()
    assert "1,200 records, 98,765 tokens" in text
    assert "| spam (somewhere/spam) | CC BY 4.0 | 1,200 |" in text


def test_a_report_without_the_key_is_matched_by_the_fingerprint(mixed, tmp_path):
    done = export_release(mixed, tmp_path / "release")
    right = {"parents": {"candidate": open_release(done.path).fingerprint}}
    check_report(done.path, right)
    with pytest.raises(CheckFailed, match="another release"):
        check_report(done.path, {"parents": {"candidate": "0" * 64}})
    shrunk = shrink_tables(mixed, tmp_path / "int8")
    with pytest.raises(CheckFailed, match="which int8 tables"):
        check_report(shrunk.path, right)


def test_any_other_change_is_not_the_verified_release(mixed, tmp_path):
    done = export_release(mixed, tmp_path / "release", repo="acme/nano")
    before = measured_sha256(done.path)
    sums = (done.path / SUMS_FILE).read_text()
    changed = re.sub(r"^[0-9a-f]{64}  config.json$", f"{'0' * 64}  config.json", sums, flags=re.M)
    (done.path / SUMS_FILE).write_text(changed)
    assert measured_sha256(done.path) != before


def test_differing_global_scales_are_refused(mixed, tmp_path):
    folder = shutil.copytree(mixed, tmp_path / "unshared")
    info = next(i for n, i in read_backbone(folder).items() if n.endswith("in_proj_z.weight_global_scale"))
    with info.file.open("r+b") as handle:
        handle.seek(info.start + 3)
        handle.write(b"\x01")
    with pytest.raises(InputError, match=r"in_proj_z.*audit .* --repair"):
        export_release(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_checkpoint_is_refused(tiny, mixed, release, tmp_path):
    with pytest.raises(InputError, match="not quantized"):
        export_release(tiny.path, tmp_path / "out")
    with pytest.raises(InputError, match="a release already"):
        export_release(release, tmp_path / "out")
    with pytest.raises(InputError, match="ORG/NAME"):
        export_release(mixed, tmp_path / "out", base_model="clef")


def test_an_existing_or_unwritable_target_is_refused(mixed, release, tmp_path):
    with pytest.raises(InputError, match="not empty"):
        export_release(mixed, release)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        export_release(mixed, tmp_path / "file" / "out")


def test_a_full_disk_is_told_before_and_leaves_nothing_after(mixed, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(PrerequisiteError, match=r"0\.0 MB are free"):
        export_release(mixed, tmp_path / "out")
    monkeypatch.undo()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(release_folder, "write_shards", full)
    with pytest.raises(OSError, match="No space"):
        export_release(mixed, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_copy_leaves_nothing(mixed, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(release_folder, "copy_plugin", stop)
    with pytest.raises(KeyboardInterrupt):
        export_release(mixed, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_plugin_source_is_a_prerequisite(mixed, tmp_path, monkeypatch):
    monkeypatch.setattr(plugin, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(PrerequisiteError, match="plugin's source"):
        export_release(mixed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "count"), [("5GB", 5 * 10**9), ("2 GiB", 2**31), ("500mb", 5 * 10**8), ("12", 12)])
def test_sizes(text, count):
    assert shards.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0MB", "5XB"])
def test_sizes_that_are_none(text):
    with pytest.raises(InputError, match="for example 5GB"):
        shards.parse_size(text)
