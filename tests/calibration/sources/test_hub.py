"""Fault 4.01: data sets from Parquet alone, from the Hub (a loopback server), its cache, or a local copy."""

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clefquant.calibration.source_config import HubSource
from clefquant.calibration.sources.hub import locate, split_files
from clefquant.errors import InputError

SHA = "1234567890abcdef1234567890abcdef12345678"
CONVERTED_SHA = "c" * 40


def parquet() -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b"]}), data)
    return data.getvalue()


@pytest.mark.parametrize(
    ("names", "config", "split", "found"),
    [
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/test-00000-of-00001.parquet",
            ],
            None,
            "train",
            2,
        ),
        (
            ["ARC-Challenge/train-00000-of-00001.parquet", "ARC-Easy/train-00000-of-00001.parquet"],
            "ARC-Challenge",
            "train",
            1,
        ),
        (["ARC-Challenge/train-00000-of-00001.parquet", "ARC-Easy/train-00000-of-00001.parquet"], None, "train", 0),
        (
            ["plain_text/train_r1-00000-of-00001.parquet", "plain_text/train_r3-00000-of-00001.parquet"],
            "plain_text",
            "train_r3",
            1,
        ),
        (["default/test/0000.parquet", "default/test/0001.parquet", "default/train/0000.parquet"], None, "test", 2),
        (["train.parquet", "data.csv"], None, "train", 1),
        (["banking77.py", "README.md"], None, "train", 0),
    ],
)
def test_where_the_hub_keeps_splits(names: list[str], config: str | None, split: str, found: int) -> None:
    assert len(split_files(names, config, split)) == found or (config is None and found == 0)


def test_two_configurations_are_not_mixed_up() -> None:
    names = ["ARC-Challenge/train-00000-of-00001.parquet", "ARC-Easy/train-00000-of-00001.parquet"]
    assert split_files(names, None, "train") == []


def test_local_copy(tmp_path: Path) -> None:
    (tmp_path / "copy" / "data").mkdir(parents=True)
    (tmp_path / "copy" / "data" / "train-00000-of-00001.parquet").write_bytes(parquet())
    source = HubSource(kind="hub", name="s", dataset="a/b", path="copy")
    assert [file.name for file in locate(source, tmp_path).files] == ["train-00000-of-00001.parquet"]
    with pytest.raises(InputError, match=r"no Parquet file of split 'test'; it has data/train-00000-of-00001\.parquet"):
        locate(source.model_copy(update={"split": "test"}), tmp_path)


FILES = {
    ("org/good", SHA): {"data/train-00000-of-00001.parquet": parquet(), "README.md": b"hello"},
    ("org/script", SHA): {"script.py": b"raise SystemExit"},
    ("org/script", CONVERTED_SHA): {"default/train/0000.parquet": parquet()},
    ("org/only-script", SHA): {"only.py": b""},
}


class Hub(BaseHTTPRequestHandler):
    """Data sets of the tests: ``org/good`` with Parquet, ``org/script`` with a script and a converted branch."""

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "datasets"]:
            name, rest = "/".join(parts[2:4]), "/".join(parts[4:])
            converted = "convert" in rest or CONVERTED_SHA in rest
            sha = CONVERTED_SHA if converted else SHA
            files = FILES.get((name, sha))
            if files is None:
                code = "RevisionNotFound" if (name, SHA) in FILES else "RepoNotFound"
                self.answer(404, b"{}", {"X-Error-Code": code})
            elif rest.startswith("tree"):
                entries = [
                    {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for file, data in files.items()
                ]
                self.answer(200, json.dumps(entries).encode())
            else:
                siblings = [{"rfilename": file} for file in files]
                self.answer(200, json.dumps({"id": name, "sha": sha, "siblings": siblings, "private": False}).encode())
        elif parts[0] != "datasets":
            self.answer(404, b"{}")
        else:
            name, sha, file = "/".join(parts[1:3]), parts[4], "/".join(parts[5:])
            data = FILES[(name, sha)][file]
            self.answer(200, data, {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})

    do_HEAD = do_GET

    def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


SCRIPT = """
import sys
from pathlib import Path
from clefquant.calibration.source_config import HubSource
from clefquant.calibration.sources.hub import locate
from clefquant.errors import ClefquantError
try:
    found = locate(HubSource(kind="hub", name="s", dataset=sys.argv[1]), Path())
    print("found", *[file.name for file in found.files], found.commit[:4])
except ClefquantError as error:
    print(type(error).__name__, error)
"""


def ask(dataset: str, endpoint: str, home: Path, **more: str) -> str:
    """In a process of its own: the Hub's address is read when its client is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = {
        **kept,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "PYTHONWARNINGS": "ignore",
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, dataset],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_from_the_hub_then_from_its_cache(hub: str, tmp_path: Path) -> None:
    assert ask("org/good", hub, tmp_path) == "found train-00000-of-00001.parquet 1234"
    nowhere = "http://127.0.0.1:9"
    assert ask("org/good", nowhere, tmp_path, HF_HUB_OFFLINE="1") == "found train-00000-of-00001.parquet 1234"
    assert ask("org/good", nowhere, tmp_path) == "found train-00000-of-00001.parquet 1234"
    assert ask("org/good", nowhere, tmp_path / "empty", HF_HUB_OFFLINE="1").startswith(
        "PrerequisiteError s: org/good is not in the Hub cache"
    )


def test_a_script_is_never_run(hub: str, tmp_path: Path) -> None:
    assert ask("org/script", hub, tmp_path) == "found 0000.parquet cccc"
    said = ask("org/only-script", hub, tmp_path)
    assert said.startswith("InputError s: org/only-script has no Parquet file of split 'train' (only a loading script")
    assert "path: in the mixture" in said


def test_no_such_data_set(hub: str, tmp_path: Path) -> None:
    assert ask("org/none", hub, tmp_path).startswith("InputError s: there is no data set org/none on the Hub")


def test_a_cache_that_cannot_be_written(hub: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = ask("org/good", hub, tmp_path / "file" / "home")
    assert said.startswith("PrerequisiteError s: org/good cannot be stored at /")
    assert said.endswith("Not a directory. Set HF_HOME to a folder with space that can be written.")
