"""The candidate behind a running server: ``POST /v1/systemone`` with ``"return": ["logits"]``."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clefquant.calibration.stored import StoredRecord
from clefquant.errors import InputError, PrerequisiteError
from clefquant.progress import Progress
from clefquant.verify.performance import WARM_UP, latency_rows, latency_sample, throughput
from clefquant.verify.results import Served, answers_of

CONCURRENCY = 32
_TIMEOUT_S = 600.0
_BUSY_TRIES = 30


def answer_over_http(url: str, records: Sequence[StoredRecord], progress: Progress) -> Served:
    """What the server answered and how fast: some records one at a time, then all with 32 clients.

    PrerequisiteError when it cannot be reached; InputError when it refuses a record or returns no logits. A failure
    inside the server (5xx) is no answer: NaN, with the server's message.
    """
    endpoint = url.rstrip("/") + "/v1/systemone"
    for record in records[:WARM_UP]:
        _ask(endpoint, record)
    sample, seconds, alone = latency_sample(records), [], []
    for index in sample:
        start = time.perf_counter()
        alone.append(_ask(endpoint, records[index]))
        seconds.append(time.perf_counter() - start)
    results: list[dict[str, Any]] = []
    start = time.perf_counter()
    with ThreadPoolExecutor(CONCURRENCY) as pool, progress.task("candidate, server", len(records), "records") as task:
        for result in pool.map(lambda record: _ask(endpoint, record), records):
            results.append(result)
            task.advance()
    elapsed = time.perf_counter() - start
    about = {"engine": f"server at {url}", "served_model": _served_model(url)}
    performance = {
        **about,
        "throughput": throughput(records, elapsed, f"{CONCURRENCY} clients over HTTP"),
        "latency": latency_rows(records, sample, seconds),
    }
    chosen = answers_of([records[index] for index in sample], alone, "the server")
    return Served(answers_of(records, results, "the server"), chosen, about, performance)


def _ask(endpoint: str, record: StoredRecord) -> dict[str, Any]:
    body = json.dumps({**record.record, "model": "verify", "return": ["logits"]}, ensure_ascii=False).encode()
    for _ in range(_BUSY_TRIES):
        status, retry_after, answer = _post(endpoint, body)
        if status != 503:
            break
        time.sleep(retry_after)
    if status == 200 and "logits" in answer:
        return {"logits": answer["logits"]}
    if status == 200:
        raise InputError(
            f"{endpoint} returns no raw logits; verify needs a clef-systemone that knows `return: [logits]`."
        )
    message = f"{status} {answer.get('error', answer)}"
    if status >= 500:
        return {"error": message}
    raise InputError(
        f"{endpoint} refuses record {record.record_id}: {message}. Raise its limits, or leave the record out."
    )


def _post(endpoint: str, body: bytes) -> tuple[int, float, dict[str, Any]]:
    request = urllib.request.Request(endpoint, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.status, 0.0, json.loads(response.read())
    except urllib.error.HTTPError as error:
        retry_after = float(error.headers.get("Retry-After") or 1)
        try:
            return error.code, retry_after, dict(json.loads(error.read()))
        except (ValueError, TypeError):
            return error.code, retry_after, {"error": error.reason}
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PrerequisiteError(
            f"{endpoint} cannot be asked: {error}. Start the server, or correct the URL."
        ) from error


def _served_model(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/v1/models", timeout=10) as response:
            return str(json.loads(response.read())["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, LookupError):
        return None
