"""A small Hub on the loopback: repositories, large files by hash, commits, tags; and faults on request.

Speaks as much of the Hub's HTTP as huggingface_hub needs to create, list, upload, commit, tag and download a model.
"""

import base64
import hashlib
import json
import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors",)
TOKEN = "hf_loopback_secret_token"


@dataclass
class Blob:
    data: bytes
    large: bool

    @property
    def sha1(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass
class Repo:
    private: bool
    files: dict[str, Blob] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class State:
    """``faults``: [pattern of "METHOD path", status or 0 to cut the connection, times]. ``received``: large files.
    ``answers``: how many requests are answered before every connection is cut; None: all."""

    repos: dict[str, Repo] = field(default_factory=dict)
    store: dict[str, bytes] = field(default_factory=dict)
    received: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    faults: list[list] = field(default_factory=list)
    damage: bool = False
    answers: int | None = None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_):
        pass

    def _serve(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        line = f"{self.command} {path}"
        self.state.requests.append(line)
        if self.state.answers is not None:
            self.state.answers -= 1
            if self.state.answers < 0:
                self._cut()
                return
        for fault in self.state.faults:
            if fault[2] > 0 and re.search(fault[0], line):
                fault[2] -= 1
                if fault[1] == 0:
                    self._cut()
                    return
                self._body()
                self._json({"error": f"asked to fail, token {TOKEN}"}, fault[1])
                return
        body = self._body()
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not known and not path.startswith("/store/") and not self._for_everybody(path):
            # over https huggingface_hub takes a plain 401 for a repository that is not there; over http it needs this
            hidden = {} if "Authorization" in self.headers else {"X-Error-Code": "RepoNotFound"}
            self._json({"error": "no such token"}, 401, hidden)
            return
        for pattern, method in ROUTES:
            if found := re.fullmatch(pattern, line):
                getattr(self, method)(body, *found.groups())
                return
        self._json({"error": f"no route {line}"}, 404)

    do_GET = do_POST = do_PUT = do_HEAD = _serve

    def _cut(self) -> None:
        """The connection breaks in the middle of the body."""
        self.rfile.read(min(64, int(self.headers.get("Content-Length") or 0)))
        self.close_connection = True
        self.connection.close()

    def _for_everybody(self, path: str) -> bool:
        """Whether the request reads a public repository and carries no token; what is not there is not public."""
        reads = self.command in ("GET", "HEAD") and "Authorization" not in self.headers
        return reads and any(f"/{name}/" in path for name, repo in self.state.repos.items() if not repo.private)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _json(self, value, status: int = 200, headers: dict | None = None) -> None:
        self._raw(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _raw(self, data: bytes, status: int, headers: dict) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _repo(self, name: str) -> Repo | None:
        found = self.state.repos.get(name)
        if found is None:
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        return found

    def create(self, body: bytes) -> None:
        value = json.loads(body)
        name = f"{value['organization']}/{value['name']}"
        url = f"http://{self.headers['Host']}/{name}"
        if name in self.state.repos:
            self._json({"error": "You already created this model repo", "url": url}, 409)
            return
        self.state.repos[name] = Repo(bool(value.get("private") or value.get("visibility") == "private"))
        self._json({"url": url, "name": name, "id": name})

    def validate(self, _: bytes) -> None:
        self._json({"errors": [], "warnings": []})

    def tree(self, _: bytes, name: str) -> None:
        if repo := self._repo(name):
            self._json([_entry(path, blob) for path, blob in sorted(repo.files.items())])

    def refs(self, _: bytes, name: str) -> None:
        if repo := self._repo(name):
            tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": c} for n, c in repo.tags.items()]
            self._json({"branches": [], "tags": tags, "converts": []})

    def info(self, _: bytes, name: str) -> None:
        if repo := self._repo(name):
            siblings = [{"rfilename": path} for path in repo.files]
            head = repo.commits[-1] if repo.commits else "0" * 40
            self._json(
                {"id": name, "modelId": name, "sha": head, "siblings": siblings, "tags": [], "private": repo.private}
            )

    def preupload(self, body: bytes, name: str) -> None:
        if self._repo(name):
            files = json.loads(body)["files"]
            self._json(
                {
                    "files": [
                        {
                            "path": file["path"],
                            "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                            "shouldIgnore": False,
                        }
                        for file in files
                    ]
                }
            )

    def batch(self, body: bytes, _: str) -> None:
        objects = []
        for one in json.loads(body)["objects"]:
            href = f"http://{self.headers['Host']}/store/{one['oid']}"
            actions = {} if one["oid"] in self.state.store else {"actions": {"upload": {"href": href, "header": {}}}}
            objects.append({"oid": one["oid"], "size": one["size"], "authenticated": True, **actions})
        self._json({"transfer": "basic", "objects": objects}, 200, {"Content-Type": "application/vnd.git-lfs+json"})

    def keep(self, body: bytes, oid: str) -> None:
        self.state.received.append(oid)
        assert hashlib.sha256(body).hexdigest() == oid
        self.state.store[oid] = body
        self._json({})

    def commit(self, body: bytes, name: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                repo.titles.append(value["summary"])
            elif item["key"] == "file":
                repo.files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif item["key"] == "lfsFile":
                data = self.state.store[value["oid"]]
                repo.files[value["path"]] = Blob(data[:-1] + b"?" if self.state.damage else data, True)
            elif item["key"] == "deletedFile":
                repo.files.pop(value["path"], None)
        repo.commits.append(hashlib.sha1(body + str(len(repo.commits)).encode()).hexdigest())
        url = f"http://{self.headers['Host']}/{name}/commit/{repo.commits[-1]}"
        self._json({"success": True, "commitOid": repo.commits[-1], "commitUrl": url})

    def tag(self, body: bytes, name: str, revision: str) -> None:
        if repo := self._repo(name):
            repo.tags[json.loads(body)["tag"]] = revision
            self._json({})

    def resolve(self, _: bytes, name: str, path: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        head = repo.commits[-1] if repo.commits else "0" * 40
        blob = repo.files.get(path)
        if blob is None:
            self._json({}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": head})
            return
        etag = blob.sha256 if blob.large else blob.sha1
        self._raw(blob.data, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": head})


_NAME = r"([\w.-]+/[\w.-]+)"
ROUTES = (
    (r"POST /api/validate-yaml", "validate"),
    (r"POST /api/repos/create", "create"),
    (rf"GET /api/models/{_NAME}/tree/(?:main|[0-9a-f]+)", "tree"),
    (rf"GET /api/models/{_NAME}/refs", "refs"),
    (rf"GET /api/models/{_NAME}(?:/revision/[^/]+)?", "info"),
    (rf"POST /api/models/{_NAME}/preupload/main", "preupload"),
    (rf"POST /api/models/{_NAME}/commit/main", "commit"),
    (rf"POST /api/models/{_NAME}/tag/(.+)", "tag"),
    (rf"POST /{_NAME}\.git/info/lfs/objects/batch", "batch"),
    (r"PUT /store/([0-9a-f]+)", "keep"),
    (rf"(?:GET|HEAD) /{_NAME}/resolve/[^/]+/(.+)", "resolve"),
)


def _entry(path: str, blob: Blob) -> dict:
    lfs = {"lfs": {"oid": blob.sha256, "size": len(blob.data), "pointerSize": 134}} if blob.large else {}
    return {"type": "file", "path": path, "oid": blob.sha1, "size": len(blob.data), **lfs}


class HubServer:
    """A running server; ``state`` is what it holds, ``url`` its endpoint."""

    def __init__(self) -> None:
        self.state = State()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"state": self.state}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
