"""Publishing against a loopback Hub: what is refused, what arrives, what is sent twice (nothing)."""

import json
import random
import re
import shutil

import pytest

from clefquant.errors import CheckFailed, ClefquantError, InputError, PrerequisiteError
from clefquant.export.audit import audit, has_errors
from clefquant.export.lint import lint_card
from clefquant.export.publish import publish
from clefquant.export.release_folder import export_release
from clefquant.export.sums import SUMS_FILE
from clefquant.release.artefact import sha256_file
from clefquant.verify.stored_report import RELEASE_KEY, measured_sha256

from .hub_server import TOKEN


def report_for(folder, **changes) -> dict:
    row = {"name": "all", "questions": 100, "agreement": {"value": 0.99}, "kl": {"value": 0.002}}
    return {
        "kind": "verify report",
        "schema_version": 1,
        RELEASE_KEY: measured_sha256(folder),
        "backend": {"engine": "simulated", "device": "cpu"},
        "tables": {"all": [row], "groups": []},
        "gate": {"limits": [{"row": "all", "limit": "kl <= 0.003", "passed": True}]},
        **changes,
    }


@pytest.fixture
def ready(mixed, tmp_path):
    """A release with a passed report beside it."""
    folder = tmp_path / "run" / "release"
    export_release(mixed, folder, max_shard_bytes=60_000, base_model="acme/clef-tuned")
    (tmp_path / "run" / "report").mkdir()
    (tmp_path / "run" / "report" / "report.json").write_text(json.dumps(report_for(folder)))
    return folder


def files_of(hub, repo="acme/nano") -> dict[str, bytes]:
    return {name: blob.data for name, blob in hub.state.repos[repo].files.items()}


def uploads(hub) -> list[str]:
    return [
        line for line in hub.state.requests if line.startswith("PUT") or "/commit/" in line or line.endswith("create")
    ]


def test_what_arrives_is_the_release_with_its_card_completed(hub, ready, tmp_path):
    before = {p.relative_to(ready).as_posix(): p.read_bytes() for p in ready.rglob("*") if p.is_file()}
    done = publish(ready, "acme/nano", private=True, tag="v1")
    assert {p.relative_to(ready).as_posix(): p.read_bytes() for p in ready.rglob("*") if p.is_file()} == before
    there = files_of(hub)
    changed = {"README.md", SUMS_FILE}
    assert all(there[name] == data for name, data in before.items() if name not in changed)
    assert set(there) - set(before) == {"verify_report.json"}
    card = there["README.md"].decode()
    assert "hf download acme/nano" in card
    assert "| All | 100 | 99.0% | 0.0020 |" in card
    repo = hub.state.repos["acme/nano"]
    assert repo.private
    assert repo.tags == {"v1": done.commit}
    assert repo.titles == ["Upload release", "Upload model card"]
    sizes = [len(there[name]) for name in done.sent[:-1]]
    assert sizes == sorted(sizes, reverse=True)
    assert done.sent[-1] == "README.md"
    folder = tmp_path / "downloaded"
    for name, data in there.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    assert not has_errors(audit(folder))


def test_a_second_time_sends_nothing(hub, ready):
    publish(ready, "acme/nano")
    commits = len(hub.state.repos["acme/nano"].commits)
    done = publish(ready, "acme/nano")
    assert done.sent == []
    assert done.commit is None
    assert len(hub.state.repos["acme/nano"].commits) == commits


def test_a_dry_run_sends_nothing(hub, ready):
    done = publish(ready, "acme/nano", dry_run=True)
    assert done.sent[-1] == "README.md"
    assert done.bytes > 0
    assert uploads(hub) == []
    assert hub.state.repos == {}


def test_a_dry_run_needs_no_token(hub, ready, monkeypatch):
    first = publish(ready, "acme/nano", dry_run=True)
    publish(ready, "acme/nano")
    publish(ready, "acme/hidden", private=True)
    before = uploads(hub)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert publish(ready, "acme/nano", dry_run=True).sent == []
    for unseen in ("acme/new", "acme/hidden"):
        done = publish(ready, unseen, dry_run=True)
        assert (done.sent, done.kept, done.url) == (first.sent, [], None)
    assert uploads(hub) == before


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_upload_resumes_without_sending_anything_again(hub, ready, seed):
    shards = sorted(ready.glob("*.safetensors"))
    point = random.Random(seed).randrange(len(shards))
    hub.state.faults.append([r"PUT /store/" + sha256_file(shards[point]), 0, 100])
    with pytest.raises(PrerequisiteError, match="again to continue"):
        publish(ready, "acme/nano")
    arrived = list(hub.state.received)
    hub.state.faults.clear()
    publish(ready, "acme/nano")
    assert len(hub.state.received) == len(set(hub.state.received)) == len({sha256_file(s) for s in shards})
    assert hub.state.received[: len(arrived)] == arrived


@pytest.mark.parametrize("seed", range(5))
def test_a_hub_that_falls_silent_at_any_request(hub, ready, seed):
    """The same command again ends with what one undisturbed run gives, tag included, and sends no file twice."""
    publish(ready, "acme/whole", tag="v1")
    requests = len(hub.state.requests)
    hub.state.received.clear()
    hub.state.store.clear()
    hub.state.answers = random.Random(seed).randrange(requests)
    with pytest.raises(PrerequisiteError, match="again to continue"):
        publish(ready, "acme/nano", tag="v1")
    hub.state.answers = None
    publish(ready, "acme/nano", tag="v1")
    assert sorted(hub.state.received) == sorted({sha256_file(file) for file in ready.rglob("*.safetensors")})
    there, whole = files_of(hub), files_of(hub, "acme/whole")
    renamed = {"README.md", SUMS_FILE}
    assert {n: d for n, d in there.items() if n not in renamed} == {n: d for n, d in whole.items() if n not in renamed}
    repo = hub.state.repos["acme/nano"]
    assert repo.tags == {"v1": repo.commits[-1]}


REQUESTS = {
    "list": r"GET /api/models/acme/nano/tree", "create": r"POST /api/repos/create",
    "ask": r"POST /api/models/acme/nano/preupload", "large": r"objects/batch",
    "commit": r"POST /api/models/acme/nano/commit", "tag": r"POST /api/models/acme/nano/tag",
}  # fmt: skip


ANSWERS = {
    401: (InputError, "not valid"), 403: (InputError, "may not write"),
    409: (PrerequisiteError, "somebody else changed"), 429: (PrerequisiteError, "too many requests"),
    500: (PrerequisiteError, "the Hub failed"), 503: (PrerequisiteError, "the Hub failed"),
}  # fmt: skip
#: To creating, 409 says that the repository is there.
REFUSALS = [(name, status) for name in REQUESTS for status in ANSWERS if (name, status) != ("create", 409)]


@pytest.mark.parametrize(("request_", "status"), REFUSALS)
def test_refusals_of_the_hub_are_said_without_the_token(hub, ready, request_, status):
    kind, words = ANSWERS[status]
    hub.state.faults.append([REQUESTS[request_], status, 100])
    with pytest.raises(kind, match=words) as caught:
        publish(ready, "acme/nano", tag="v1")
    assert TOKEN not in str(caught.value)
    assert str(status) in str(caught.value)
    assert caught.value.__cause__ is None
    hub.state.faults.clear()
    publish(ready, "acme/nano", tag="v1")
    assert list(hub.state.repos["acme/nano"].tags) == ["v1"]
    assert len(hub.state.received) == len(set(hub.state.received))


def test_passing_trouble_of_the_hub_is_waited_out(hub, ready):
    hub.state.faults += [[r"PUT /store/", 503, 2], [r"objects/batch", 429, 1]]
    publish(ready, "acme/nano")
    assert "README.md" in files_of(hub)


def test_no_token(hub, ready, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(InputError, match="no Hub token"):
        publish(ready, "acme/nano")
    assert hub.state.requests == []


def _flip(folder) -> None:
    file = next(folder.glob("model*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


def _report(**changes):
    def change(folder) -> None:
        path = folder.parent / "report" / "report.json"
        path.write_text(json.dumps(report_for(folder, **changes)))

    return change


def _drop_report(folder) -> None:
    shutil.rmtree(folder.parent / "report")


def _without_plugin(folder) -> None:
    shutil.rmtree(folder / "vllm_plugin")
    sums = (folder / SUMS_FILE).read_text().splitlines(keepends=True)
    (folder / SUMS_FILE).write_text("".join(line for line in sums if "vllm_plugin" not in line))
    _report()(folder)


def _facts(**changes):
    def change(folder) -> None:
        path = folder / "clefquant_card.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        sums = (folder / SUMS_FILE).read_text()
        line = rf"^[0-9a-f]{{64}}  {path.name}$"
        (folder / SUMS_FILE).write_text(re.sub(line, f"{sha256_file(path)}  {path.name}", sums, flags=re.M))
        _report()(folder)

    return change


FAILED = {"limits": [{"row": "all", "limit": "kl <= 0.001", "passed": False}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_flip, "the audit fails"),
        (_drop_report, "no verify report"),
        (_report(gate=FAILED), "kl <= 0.001"),
        (_report(gate=None), "without a gate"),
        (_report(**{RELEASE_KEY: "0" * 64}), "measured another release"),
        (_without_plugin, "vllm_plugin/pyproject.toml is missing"),
        (_facts(base_model="Qwen/Qwen3.5-9B"), "the backbone's own base"),
        (_facts(base_model="Cloudflare/clef"), "have another shape"),
        (_facts(base_model=None), "base_model is missing"),
        (_facts(model="acme/other"), "was made from acme/other"),
    ],
)
def test_nothing_is_sent_when_anything_is_wrong(hub, ready, change, words):
    change(ready)
    with pytest.raises(CheckFailed, match=words):
        publish(ready, "acme/nano")
    assert uploads(hub) == []


def test_damage_on_the_way_is_found(hub, ready):
    hub.state.damage = True
    with pytest.raises(CheckFailed, match="are not the ones sent"):
        publish(ready, "acme/nano", tag="v1")
    assert hub.state.repos["acme/nano"].tags == {}


def test_a_new_version_replaces_the_old_and_says_what_changed(hub, ready, make_checkpoint, tmp_path):
    publish(ready, "acme/nano", tag="v1")
    second = tmp_path / "second" / "release"
    export_release(make_checkpoint("fp8"), second, base_model="acme/clef-tuned")
    report = tmp_path / "report.json"
    row = {"name": "all", "questions": 100, "agreement": {"value": 0.995}, "kl": {"value": 0.001}}
    report.write_text(json.dumps(report_for(second, tables={"all": [row], "groups": []})))
    with pytest.raises(InputError, match="already has a tag v1"):
        publish(second, "acme/nano", report=report, tag="v1")
    done = publish(second, "acme/nano", report=report, tag="v2")
    there = files_of(hub)
    assert any(name.startswith("model-") for name in done.removed)
    assert not any(name in there for name in done.removed)
    card = there["README.md"].decode()
    assert "units have another format" in card
    assert "Same top option 99.0% → 99.5%" in card
    again = publish(second, "acme/nano", report=report)
    assert again.sent == []


def test_a_repository_name_that_is_none(ready):
    with pytest.raises(InputError, match="ORG/NAME"):
        publish(ready, "nano")


def test_lint_of_cards_others_wrote(ready):
    text = (ready / "README.md").read_text().replace("ORG/NAME", "acme/nano")
    assert lint_card(ready, text, "acme/nano") == []
    assert lint_card(ready, text, "acme/other") == ["a snippet names acme/nano, not acme/other"]
    assert lint_card(ready, "no header", "acme/nano") == ["README.md has no YAML header"]
    for old, new, words in (
        ("license: apache-2.0", "license: mit", "license is 'mit'"),
        ("license: apache-2.0", "license: apache-2.0\ndatasets:", "datasets is empty"),
        ("base_model_relation: quantized", "base_model_relation: finetune", "base_model_relation"),
        ("pipeline_tag: zero-shot-classification", "pipeline_tag: text-generation", "promises text generation"),
        ("license: apache-2.0", "license: [", "does not parse"),
    ):
        assert any(words in fault for fault in lint_card(ready, text.replace(old, new, 1), "acme/nano")), words


def test_every_failure_has_an_exit_code():
    assert all(issubclass(kind, ClefquantError) for kind in (CheckFailed, InputError, PrerequisiteError))
