"""The GitHub workflows: linted, pinned, careful with secrets, and every step of theirs run here, on a loopback Hub."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
#: Steps that are this test suite itself, or fetch the linter.
NOT_HERE = ("scripts/test", "actionlint")


def jobs(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["jobs"]


def steps(path: Path) -> list[dict]:
    return [step for job in jobs(path).values() for step in job["steps"]]


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed; CI installs it")
def test_actionlint_finds_nothing():
    done = subprocess.run(["actionlint", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_rights_are_few(path):
    text, value = path.read_text(), yaml.safe_load(path.read_text())
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert value["permissions"] == {"contents": "read"}
    assert value["concurrency"]["group"]
    assert all("timeout-minutes" in job for job in jobs(path).values())
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_from_outside_is_pasted_into_a_shell(path):
    assert all(not EXPRESSION.search(step.get("run", "")) for step in steps(path))


def test_only_publishing_sees_the_token_that_may_write():
    text = "\n".join(path.read_text() for path in WORKFLOWS)
    assert text.count("secrets.HF_TOKEN ") == 1
    release = next(path for path in WORKFLOWS if path.stem == "release")
    seen = [step["name"] for step in steps(release) if "secrets.HF_TOKEN " in str(step.get("env"))]
    assert seen == ["Publish"]
    assert jobs(release)["release"]["environment"] == "hub"
    assert "pull_request_target" not in text


class Runner:
    """Runs the ``run`` steps of a job as GitHub does: one shell each, GITHUB_ENV between them."""

    def __init__(self, folder: Path, values: dict[str, str]) -> None:
        self.folder, self.values, self.env = folder, values, {}
        self.github_env = folder / "github.env"

    def job(self, job: dict) -> list[str]:
        ran = []
        for step in job["steps"]:
            if "run" in step and not any(name in step["run"] for name in NOT_HERE):
                self._step(step, self._filled(job.get("env", {})))
                ran.append(step["name"])
        return ran

    def _filled(self, env: dict) -> dict[str, str]:
        return {key: EXPRESSION.sub(lambda found: self.values[found[1]], str(value)) for key, value in env.items()}

    def _step(self, step: dict, env: dict[str, str]) -> None:
        self.github_env.write_text("")
        mine = {key: value for key, value in os.environ.items() if not key.startswith("HF_TOKEN")}
        whole = {**mine, **env, **self.env, **self._filled(step.get("env", {})), "GITHUB_ENV": str(self.github_env)}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=self.folder, env=whole, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (step["name"], done.stdout, done.stderr)
        lines = self.github_env.read_text().splitlines()
        self.env |= dict(line.split("=", 1) for line in lines)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with what the steps call, set up already."""
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "scripts" / "setup").write_text("#!/bin/sh\n")
    (folder / "scripts" / "setup").chmod(0o755)
    for name in ("clefquant", "python"):
        (folder / ".venv" / "bin" / name).symlink_to(ROOT / ".venv" / "bin" / name)
    assert os.access(ROOT / "scripts" / "setup", os.X_OK)
    return folder


@pytest.fixture
def hub_env(hub, monkeypatch):
    for key, value in {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(key, value)
    return hub


def test_the_steps_of_the_release_job_publish_a_release(small_run, checkout, hub_env):
    from ..export.hub_server import TOKEN

    release = next(path for path in WORKFLOWS if path.stem == "release")
    values = {
        "inputs.config || vars.RELEASE_CONFIG": str(small_run(scheme="fp8", calibration=None)),
        "inputs.repository || vars.RELEASE_REPOSITORY": "acme/nano",
        "inputs.tag || (github.ref_type == 'tag' && github.ref_name) || ''": "v1",
        "inputs.private": "true", "secrets.HF_READ_TOKEN": "", "secrets.HF_TOKEN": TOKEN,
    }  # fmt: skip
    ran = Runner(checkout, values).job(jobs(release)["release"])
    assert ran == ["Install", "Run", "Verify with the gate", "Publish"]
    there = hub_env.state.repos["acme/nano"]
    assert there.private
    assert list(there.tags) == ["v1"]
    assert (checkout / "runs" / "run" / "report" / "report.json").is_file()


def test_the_steps_of_the_nano_job(small_run, checkout, hub_env):
    ci = next(path for path in WORKFLOWS if path.stem == "ci")
    job = jobs(ci)["nano"]
    assert (ROOT / job["env"]["CONFIG"]).is_file()
    job["env"]["CONFIG"] = str(small_run(scheme="fp8", calibration=None))
    ran = Runner(checkout, {}).job(job)
    assert ran == [
        "Install", "Run and verify with the gate", "A second run has nothing to do", "What publishing would send",
    ]  # fmt: skip
    assert hub_env.state.repos == {}
