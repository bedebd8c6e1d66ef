"""Backends that really run, against stand-ins: the worker under an engine of ours, a server with known faults."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from clefquant.calibration.stored import open_set
from clefquant.errors import CheckFailed, InputError, PrerequisiteError
from clefquant.progress import SILENT
from clefquant.release.code import release_code
from clefquant.verify import runner_http
from clefquant.verify.join import request_order
from clefquant.verify.performance import latency_rows, latency_sample, length_bucket, throughput
from clefquant.verify.results import answers_of
from clefquant.verify.run import Options, verify
from clefquant.verify.runner_http import answer_over_http
from clefquant.verify.runner_vllm import answer_with_vllm

ENGINE = """
class ClefVLLM:
    def __init__(self, model, images):
        self.dtype = "torch.float32"
        self.llm = self.llm_engine = self.vllm_config = self.model_config = self
    def logits(self, records):
        if any("poison" in str(record["state"]) for record in records):
            raise RuntimeError("logits that are not finite")
        return [{name: {o: float(len(o)) for o in options(q)} for name, q in r["questions"].items()} for r in records]
    def __enter__(self): return self
    def __exit__(self, *_): print("engine closed")

def options(q):
    if q["type"] == "noul":
        return ["true", "false"]
    return sorted(q["criteria"]) if q["type"] == "choice" else list(map(str, range(len(q["criteria"]))))
"""


@pytest.fixture
def stored(tiny, evaluation):
    return list(open_set(evaluation, tiny.path, release_code(tiny.path)))


@pytest.fixture
def serving(tmp_path, monkeypatch) -> Path:
    """A Python whose clef_vllm and vllm are stand-ins."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "clef_vllm.py").write_text(ENGINE)
    (tmp_path / "site" / "vllm.py").write_text("__version__ = '0.0'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return Path(sys.executable)


def test_the_worker_answers_and_times(serving, tiny, stored, tmp_path):
    answers, alone, about, speed = answer_with_vllm(serving, tiny, stored, tmp_path, SILENT)
    assert len(answers) == sum(len(record.record["questions"]) for record in stored)
    assert answers[0].options == ("true", "false")
    assert answers[0].logits.tolist() == [4.0, 5.0]
    assert about["engine"] == "vLLM 0.0, clef-vllm"
    assert about["dtype"] == "float32"
    assert speed["throughput"]["records"] == len(stored)
    assert speed["throughput"]["tokens_per_s"] > 0
    assert sum(row["requests"] for row in speed["latency"]) == len(stored)
    assert {one.record for one in alone} == {record.record_id for record in stored}
    assert "engine closed" in (tmp_path / "vllm.log").read_text()


def test_a_record_the_engine_cannot_answer_is_nan_alone(serving, tiny, stored, tmp_path):
    stored[2].record["state"] = "poison"
    answers, *_ = answer_with_vllm(serving, tiny, stored, tmp_path, SILENT)
    bad = [answer for answer in answers if answer.error]
    assert {answer.record for answer in bad} == {stored[2].record_id}
    assert all(np.isnan(answer.logits).all() for answer in bad)
    assert "not finite" in bad[0].error


def test_an_environment_without_the_plugin(monkeypatch, tiny, stored, tmp_path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(PrerequisiteError, match=r"ended with code 1(?s:.*)No module named 'vllm'"):
        answer_with_vllm(Path(sys.executable), tiny, stored, tmp_path, SILENT)


class Server:
    """A SystemOne server in a thread; ``reply`` maps a body to (status, value)."""

    def __init__(self, reply):
        self.bodies = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(200, {"data": [{"id": "tiny"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.bodies.append(body)
                self.answer(*reply(body))

            def answer(self, status, value):
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()


def good(body):
    logits = {name: {o: float(n) for n, o in enumerate(request_order(q))} for name, q in body["questions"].items()}
    return 200, {"answers": {}, "logits": logits}


def test_a_server_is_asked_for_raw_logits(stored):
    with Server(good) as server:
        answers, alone, about, speed = answer_over_http(server.url, stored, SILENT)
    assert all(body["return"] == ["logits"] for body in server.bodies)
    assert about["served_model"] == "tiny"
    assert len(alone) == len(answers)
    assert [answer.record for answer in answers[:4]] == [stored[0].record_id] * 4
    assert speed["throughput"]["concurrency"] == "32 clients over HTTP"


def test_a_busy_server_is_asked_again_and_a_failure_is_nan(stored):
    seen = []

    def reply(body):
        seen.append(body)
        if len(seen) == 1:
            return 503, {"error": {"message": "warming"}}
        if body["state"] == stored[1].record["state"]:
            return 500, {"error": {"message": "not finite"}}
        return good(body)

    with Server(reply) as server:
        answers, *_ = answer_over_http(server.url, stored, SILENT)
    assert {answer.record for answer in answers if answer.error} == {stored[1].record_id}


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (lambda _: (400, {"error": {"message": "late: too many"}}), InputError, "refuses record r0: 400 .*too many"),
        (lambda _: (200, {"answers": {}}), InputError, "returns no raw logits"),
    ],
)
def test_servers_that_cannot_be_used(stored, reply, error, message):
    with Server(reply) as server, pytest.raises(error, match=message):
        answer_over_http(server.url, stored, SILENT)


def test_no_server(stored):
    with pytest.raises(PrerequisiteError, match="cannot be asked"):
        answer_over_http("http://127.0.0.1:9", stored, SILENT)


def test_a_whole_run_over_http_reports_speed(tiny, evaluation, folder, monkeypatch):
    monkeypatch.setattr(runner_http, "CONCURRENCY", 4)
    with Server(good) as server:
        options = Options(batch_tokens=1500)
        report = verify(tiny.path, tiny.path, [evaluation], folder, backend=server.url, options=options)
    assert report.value["performance"]["latency"]
    page = report.html.read_text()
    assert "One request at a time" in page
    assert "This release again, one at a time" in page
    assert "## Speed" in report.markdown.read_text()


def test_an_engine_that_drops_records(stored):
    with pytest.raises(CheckFailed, match="answered 1 records of 6"):
        answers_of(stored, [{"logits": {}}], "vLLM")


def test_lengths_and_times(stored):
    assert length_bucket(128) == "≤ 128"
    assert length_bucket(129) == "128–256"
    assert length_bucket(99_999) == "> 16,384"
    sample = latency_sample(stored)
    assert [stored[index].tokens for index in sample] == sorted(record.tokens for record in stored)
    rows = latency_rows(stored, sample, [0.01 * (n + 1) for n in range(len(sample))])
    assert sum(row["requests"] for row in rows) == len(stored)
    assert all(row["p50_ms"] <= row["p95_ms"] for row in rows)
    assert throughput(stored, 2.0, "x")["records_per_s"] == len(stored) / 2
