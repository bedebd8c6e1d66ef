"""``clefquant publish``: options reach the library, refusals come before the network."""

from clefquant.errors import CheckFailed, InputError
from clefquant.export import publish as module
from clefquant.export.publish import Published

from .conftest import run


def test_options_and_result(monkeypatch, tmp_path):
    seen = {}

    def publish(release, repo, **options):
        seen.update(options, release=release, repo=repo)
        return Published(repo, ["a", "README.md"], ["b"], ["old"], 1000, "c" * 40, "http://hub/acme/nano", "v1")

    monkeypatch.setattr(module, "publish", publish)
    done = run("publish", tmp_path, "--repo", "acme/nano", "--tag", "v1", "--private", "--dry-run")
    assert done.exit_code == 0, done.output
    assert (seen["repo"], seen["tag"], seen["private"], seen["dry_run"]) == ("acme/nano", "v1", True, True)
    assert "would send 2 files" in done.output
    assert "would remove old" in done.output


def test_an_unchecked_folder_is_refused_before_anything_is_sent(tiny):
    done = run("publish", tiny.path, "--repo", "acme/nano")
    assert isinstance(done.exception, CheckFailed)
    assert isinstance(run("publish", tiny.path, "--repo", "nano").exception, InputError)
