"""The candidate behind a running server: ``POST /v1/systemone`` with ``"return": ["logits"]``."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from clefquant.calibration.request import check_sendable, request_body
from clefquant.calibration.stored import StoredRecord
from clefquant.errors import CheckFailed, InputError, PrerequisiteError
from clefquant.progress import Progress
from clefquant.verify.performance import WARM_UP, latency_rows, latency_sample, throughput
from clefquant.verify.results import Served, answers_of

CONCURRENCY = 32
_TIMEOUT_S = 600.0
_BUSY_TRIES = 30


def answer_over_http(
    url: str, records: Sequence[StoredRecord], progress: Progress, key_file: Path | None = None
) -> Served:
    """What the server answered and how fast: some records one at a time, then all with 32 clients.

    ``key_file``: its first line is sent as bearer token. PrerequisiteError when the server cannot be reached or is not
    ready; InputError when it refuses a record or returns no logits; CheckFailed when it reads other tokens than the
    set has. A failure inside the server (5xx) is no answer: NaN, with the server's message.
    """
    for record in records:
        check_sendable(record)
    client = _Client(url, key_file)
    client.check_ready()
    for record in records[:WARM_UP]:
        client.ask(record)
    sample, seconds, alone = latency_sample(records), [], []
    for index in sample:
        start = time.perf_counter()
        alone.append(client.ask(records[index]))
        seconds.append(time.perf_counter() - start)
    results: list[dict[str, Any]] = []
    start = time.perf_counter()
    with ThreadPoolExecutor(CONCURRENCY) as pool, progress.task("candidate, server", len(records), "records") as task:
        for result in pool.map(client.ask, records):
            results.append(result)
            task.advance()
    elapsed = time.perf_counter() - start
    about = {"engine": f"server at {url}", **client.about()}
    performance = {
        **about,
        "throughput": throughput(records, elapsed, f"{CONCURRENCY} clients over HTTP"),
        "latency": latency_rows(records, sample, seconds),
    }
    chosen = answers_of([records[index] for index in sample], alone, "the server")
    return Served(answers_of(records, results, "the server"), chosen, about, performance)


def about_server(url: str, key_file: Path | None = None) -> dict[str, Any]:
    """The model that is served and the server's version, as far as it tells. PrerequisiteError when nobody answers."""
    return _Client(url, key_file).about()


class _Client:
    def __init__(self, url: str, key_file: Path | None) -> None:
        self._root = url.rstrip("/")
        self._endpoint = self._root + "/v1/systemone"
        self._headers = {"content-type": "application/json"}
        if key_file is not None:
            self._headers["authorization"] = f"Bearer {_first_line(key_file)}"

    def check_ready(self) -> None:
        """PrerequisiteError when nobody answers, or the server says that it is not ready."""
        status, _, state = self._send("/health")
        if status == 503:
            raise PrerequisiteError(
                f"the server at {self._root} is not ready: {state.get('status')} ({state.get('detail')}). "
                "Wait until its /health answers 200."
            )

    def ask(self, record: StoredRecord) -> dict[str, Any]:
        """``{"logits": …}`` of one record, or ``{"error": reason}``. A busy server is asked again when it says."""
        value = {**request_body(record), "model": "verify", "return": ["logits"]}
        body = json.dumps(value, ensure_ascii=False).encode()
        for _ in range(_BUSY_TRIES):
            status, retry_after, answer = self._send("/v1/systemone", body)
            if status != 503:
                break
            time.sleep(retry_after)
        message = f"{status} {answer.get('error', answer)}"
        if status >= 500:
            return {"error": message}
        if status == 401:
            raise InputError(f"{self._root} wants a key: {message}. Give --api-key-file.")
        if status != 200:
            raise InputError(
                f"{self._endpoint} refuses record {record.record_id}: {message}. Raise its limits, or leave the record "
                "out."
            )
        if "logits" not in answer:
            raise InputError(
                f"{self._endpoint} returns no raw logits; verify needs a clef-systemone that knows `return: [logits]`."
            )
        read = answer.get("usage", {}).get("input_tokens")
        if read not in (None, record.tokens) and record.encoded.media is None:
            raise CheckFailed(
                f"{self._endpoint} reads record {record.record_id} as {read:,} tokens, the set has {record.tokens:,}: "
                "it cuts long records or serves another model. Start it with a longer --max-model-len."
            )
        return {"logits": answer["logits"]}

    def about(self) -> dict[str, Any]:
        """What the server tells about itself."""
        models, page = self._send("/v1/models")[2], self._send("/openapi.json")[2].get("info", {})
        served = models["data"][0].get("id") if models.get("data") else None
        version = {"versions": {page["title"]: page["version"]}} if {"title", "version"} <= set(page) else {}
        return {"served_model": served, **version}

    def _send(self, path: str, body: bytes | None = None) -> tuple[int, float, dict[str, Any]]:
        """Status, seconds after which to try again, and the JSON that came back."""
        request = urllib.request.Request(self._root + path, body, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                return response.status, 0.0, _object(response.read())
        except urllib.error.HTTPError as error:
            wait = error.headers.get("Retry-After", "")
            return error.code, float(wait) if wait.isdigit() else 1.0, _object(error.read())
        except (OSError, http.client.HTTPException) as error:
            raise PrerequisiteError(
                f"{self._root} cannot be asked: {error}. Start the server, or correct the URL."
            ) from error


def _object(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {"error": content[:200].decode("utf-8", "replace")}


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # editors on Windows put a mark before the first key
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a file of API keys: {error}") from error
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            return line
    raise InputError(f"{path} holds no key; write one in a line.")
