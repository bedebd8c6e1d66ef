"""A whole run: each stage once, exactly the changed ones again; a release on the Hub that is the one that was made."""

import json

import pytest
from huggingface_hub import snapshot_download
from safetensors.torch import load_file

from clefquant.errors import CheckFailed, InputError
from clefquant.export.audit import audit, has_errors
from clefquant.export.publish import publish
from clefquant.export.release_folder import export_release
from clefquant.export.sums import write_sums
from clefquant.pipeline.flow import STAGES, open_flow
from clefquant.progress import SILENT
from clefquant.quantize.scales import Scales
from clefquant.release.artefact import sha256_file
from clefquant.release.headers import read_backbone
from clefquant.release.locks import locked
from clefquant.verify.run import verify

from .test_journal import Told


class View(Told):
    def task(self, title, total, unit=""):
        return SILENT.task(title, total, unit)

    def warn(self, text):
        pass


def run(path, until=STAGES[-1], force=()) -> list[str]:
    """Stages that were done now."""
    flow, view = open_flow(path, force), View()
    flow.watched_by(view)
    try:
        flow.run(until)
    finally:
        met = [entry[1] for entry in view if entry[0] != "finished"]
        assert met == flow.stages(until)[: len(met)]
    return [entry[1] for entry in view if entry[0] == "started"]


ALL = ["calibration", "evaluation", "checkpoint", "release", "audit", "report"]


def test_exactly_the_stages_that_a_change_reaches_are_done_again(small_run, tmp_path):
    assert run(small_run(), until="checkpoint") == ALL[:3]
    assert run(small_run()) == ALL[3:]
    assert run(small_run()) == []
    assert run(small_run(max_shard_size="100KB")) == ["release", "audit", "report"]
    assert len(list((tmp_path / "out" / "release").glob("model-*.safetensors"))) > 1
    assert run(small_run(tables="int8")) == ["checkpoint", "release", "audit", "report"]
    assert (tmp_path / "out" / "release" / "clef_head" / "tables_int8.safetensors").is_file()
    assert run(small_run(tables="int8"), force=["audit"]) == ["audit"]
    (tmp_path / "gate.yaml").write_text("judge: value\nlimits: [kl <= 2]\n")
    assert run(small_run(tables="int8")) == ["report"]
    assert run(small_run(tables="int8", evaluation={"mixture": "few.yaml", "seed": 2})) == [
        "evaluation", "release", "audit", "report",
    ]  # fmt: skip
    stages = json.loads((tmp_path / "out" / "run.json").read_text())["stages"]
    assert all(stage["done"] and stage["peak_memory_bytes"] > 0 for stage in stages.values())
    assert not has_errors(audit(tmp_path / "out" / "release"))


def test_two_commands_do_not_share_a_run(small_run, tmp_path):
    out = tmp_path / "out"
    with locked(out, out / ".lock"), pytest.raises(InputError, match=f"another command is writing {out}"):
        run(small_run())
    assert not list(out.iterdir())


def test_no_calibration_set_for_scales_found_at_run_time(small_run):
    assert run(small_run(calibration=None, scheme="fp8"), until="audit") == [
        "evaluation",
        "checkpoint",
        "release",
        "audit",
    ]


def test_a_failed_gate_ends_the_run_and_publishing(small_run, hub, tmp_path):
    path = small_run(verify={"gate": "strict.yaml"})
    with pytest.raises(CheckFailed):
        run(path)
    with pytest.raises(CheckFailed):  # nor does a second run take it for done
        run(path)
    with pytest.raises(CheckFailed, match=r"gate of .* failed"):
        publish(tmp_path / "out" / "release", "acme/nano")
    assert hub.state.requests == []


def test_a_damaged_release_ends_the_run(small_run, tmp_path, monkeypatch):
    run(small_run(), until="release")
    (tmp_path / "out" / "release" / "tokenizer.json").unlink()
    with pytest.raises(CheckFailed, match=r"does not pass its audit: .*tokenizer.json"):
        run(small_run())


def test_an_interrupted_stage_is_done_again(small_run, tmp_path, monkeypatch):
    from clefquant.pipeline import flow

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(flow, "export_release", stop)
        with pytest.raises(KeyboardInterrupt):
            run(small_run())
    assert not (tmp_path / "out" / "release").exists()
    assert run(small_run()) == ["release", "audit", "report"]


@pytest.mark.parametrize("after", [False, True])
def test_tables_that_were_cut_off_do_not_cost_the_checkpoint(small_run, monkeypatch, after):
    from clefquant.pipeline import flow

    def stop(*arguments, **options):
        if after:
            shrink_tables(*arguments, **options)
        raise KeyboardInterrupt

    def again(*_, **__):
        raise AssertionError("quantized again")

    shrink_tables = flow.shrink_tables
    with monkeypatch.context() as patched:
        patched.setattr(flow, "shrink_tables", stop)
        with pytest.raises(KeyboardInterrupt):
            run(small_run(tables="int8"), until="checkpoint")
    monkeypatch.setattr(flow, "quantize", again)
    assert run(small_run(tables="int8"), until="checkpoint") == ["checkpoint"]


@pytest.mark.parametrize(("algorithm", "probed_by"), [("gptq", "gptq"), ("awq", "rtn")])
def test_a_sweep_rounds_as_the_checkpoint_will(small_run, monkeypatch, algorithm, probed_by):
    from clefquant.pipeline import flow

    asked = {}

    def sweep(*arguments, **options):
        asked.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(flow, "run_sensitivity", sweep)
    plan = {"budget": "0.6x", "formats": ["fp8", "nvfp4"], "selection": {"mixture": "few.yaml", "seed": 2}}
    with pytest.raises(KeyboardInterrupt):
        run(small_run(scheme=None, plan=plan, algorithm=algorithm, nvfp4_scales="four-over-six"), until="sensitivity")
    assert (asked["algorithm"], asked["scales"]) == (probed_by, Scales("four-over-six"))


def test_block_scales_reach_the_weights(small_run, tmp_path):
    scales = []
    for choice in ("max", "four-over-six"):
        run(small_run(nvfp4_scales=choice), until="checkpoint")
        weights = load_file(tmp_path / "out" / "checkpoint" / "model.safetensors")
        scales.append(weights["model.language_model.layers.0.mlp.down_proj.weight_scale"].float())
    assert (scales[1] >= scales[0]).all()
    assert (scales[1] > scales[0]).any(), "a block whose largest weight becomes 4 has a larger scale"


def test_unknown_stages_are_refused(small_run):
    for force in (["nothing"], ["audit", "x"]):
        with pytest.raises(InputError, match="there is no stage"):
            open_flow(small_run(), force)


def test_from_a_configuration_to_a_hub_release(small_run, hub, tmp_path):
    """What is downloaded has the very bytes that were sent, passes the audit, and needs no second upload."""
    run(small_run(tables="int8", max_shard_size="100KB"))
    release = tmp_path / "out" / "release"
    done = publish(release, "acme/nano", tag="v1")
    there = hub.state.repos["acme/nano"]
    assert there.tags == {"v1": done.commit}
    folder = snapshot_download("acme/nano", local_dir=tmp_path / "downloaded")
    downloaded = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in (tmp_path / "downloaded").rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }
    assert downloaded == {name: blob.data for name, blob in there.files.items()}
    same = [name for name in downloaded if (release / name).is_file() and name not in ("README.md", "SHA256SUMS")]
    assert len(same) > 20
    assert all(sha256_file(release / name) == sha256_file(tmp_path / "downloaded" / name) for name in same)
    findings = audit(tmp_path / "downloaded")
    assert {found.message for found in findings if found.severity != "info"} <= {"LICENSE is missing"}  # as the source
    assert "hf download acme/nano" in downloaded["README.md"].decode()
    again = publish(release, "acme/nano")
    assert (again.sent, again.commit) == ([], None)
    assert run(small_run(tables="int8", max_shard_size="100KB")) == []


def test_a_report_holds_before_and_after_the_repository_is_named(small_run, tiny, hub, tmp_path):
    """Export, verify and name the repository in any order; a weight that was really changed is refused."""
    run(small_run(), until="checkpoint")
    out, evaluation = tmp_path / "out", tmp_path / "out" / "evaluation"

    def report_of(release, name):
        return verify(release, tiny.path, [evaluation], tmp_path / name, gate=tmp_path / "gate.yaml").json

    plain = export_release(out / "checkpoint", tmp_path / "plain", base_model="acme/clef-tuned").path
    before = report_of(plain, "before")
    options = {"base_model": "acme/clef-tuned", "repo": "acme/nano"}
    named = export_release(out / "checkpoint", tmp_path / "named", **options).path
    filled = export_release(out / "checkpoint", tmp_path / "filled", report=before, **options).path
    after = report_of(named, "after")
    again = report_of(filled, "again")
    for release in (plain, named, filled):
        for report in (before, after, again):
            assert publish(release, "acme/nano", report=report, dry_run=True).sent
    info = next(info for name, info in read_backbone(named).items() if name.endswith("weight_packed"))
    with info.file.open("r+b") as file:
        file.seek(info.start)
        byte = file.read(1)[0]
        file.seek(info.start)
        file.write(bytes([byte ^ 1]))
    write_sums(named)
    with pytest.raises(CheckFailed, match="measured another release"):
        publish(named, "acme/nano", report=after)
    assert hub.state.repos == {}
