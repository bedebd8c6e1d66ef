"""A candidate behind HTTP: a server that really answers, and servers with known faults."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clefquant.errors import CheckFailed, InputError, PrerequisiteError
from clefquant.progress import SILENT
from clefquant.release.load import option_logits
from clefquant.verify import runner_http
from clefquant.verify.join import request_order
from clefquant.verify.run import Options, verify
from clefquant.verify.runner_http import answer_over_http
from clefquant.verify.simulated import load_simulated


class Server:
    """A SystemOne server in a thread. ``reply`` maps a body to (status, value); ``pages``: what GET gives by path."""

    def __init__(self, reply, pages=None, key=None):
        self.bodies = []
        pages = {"/health": (200, {"status": "ready"}), "/v1/models": (200, {"data": [{"id": "tiny"}]})} | (pages or {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(*pages.get(self.path, (404, {"error": {"message": "Not Found"}})))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if key and self.headers["authorization"] != f"Bearer {key}":
                    self.answer(401, {"error": {"type": "authentication_error", "message": "a bearer token is needed"}})
                    return
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


def serving(loaded):
    """Replies as ``clef-systemone`` documents them, from a model in this process."""
    lock = threading.Lock()

    def reply(body):
        record = {"state": body["state"], "questions": body["questions"]}
        with lock:
            encoded = loaded.code.encode_record(loaded.processor.tokenizer, record)
            ((_, logits),) = option_logits(loaded, [encoded])
        by_question = {
            question.question_id: dict(zip(question.option_ids, values.tolist(), strict=True))
            for question, values in zip(encoded.questions, logits, strict=True)
        }
        answers = {name: {"label": max(options, key=options.get)} for name, options in by_question.items()}
        usage = {"input_tokens": len(encoded.input_ids), "output_tokens": 0}
        return 200, {"model": body["model"], "answers": answers, "usage": usage, "logits": by_question}

    return reply


def test_a_served_release_is_measured_as_the_simulated_one(quantized, tiny, evaluation, tmp_path):
    release = quantized("nvfp4")
    simulated = verify(release.path, tiny.path, [evaluation], tmp_path / "simulated")
    page = {"/openapi.json": (200, {"info": {"title": "clef-systemone", "version": "1.2"}})}
    with load_simulated(release) as loaded, Server(serving(loaded), page) as server:
        served = verify(release.path, simulated.reference, [evaluation], tmp_path / "served", backend=server.url)
    ours, theirs = simulated.value["tables"]["all"][0], served.value["tables"]["all"][0]
    assert theirs["agreement"] == ours["agreement"]
    assert theirs["kl"]["value"] == pytest.approx(ours["kl"]["value"], rel=1e-4)
    assert theirs["nan"] == 0
    assert served.value["backend"]["versions"] == {"clef-systemone": "1.2"}
    assert served.value["performance"]["throughput"]["records"] == 6
    assert served.value["served_noise"][0]["kl"]["value"] == 0  # one at a time, both times


def test_a_server_that_reads_other_tokens(stored):
    def reply(body):
        return 200, good(body)[1] | {"usage": {"input_tokens": 7}}

    with Server(reply) as server, pytest.raises(CheckFailed, match=r"reads record r0 as 7 tokens, the set has \d+"):
        answer_over_http(server.url, stored, SILENT)


def test_a_server_that_is_not_ready(stored):
    page = {"/health": (503, {"status": "loading", "detail": "reading weights"})}
    with Server(good, page) as server, pytest.raises(PrerequisiteError, match=r"not ready: loading \(reading weights"):
        answer_over_http(server.url, stored, SILENT)


def test_a_server_that_wants_a_key(stored, tmp_path):
    keys = tmp_path / "keys"
    for text in (b"# of the test\n\nsecret \n", b"\xef\xbb\xbfsecret\r\n"):
        keys.write_bytes(text)
        with Server(good, key="secret") as server:
            assert answer_over_http(server.url, stored, SILENT, keys).answers
    with Server(good, key="secret") as server, pytest.raises(InputError, match=r"wants a key.*--api-key-file"):
        answer_over_http(server.url, stored, SILENT)
    keys.write_text("# none\n")
    with pytest.raises(InputError, match="holds no key"):
        answer_over_http("http://127.0.0.1:9", stored, SILENT, keys)
    with pytest.raises(InputError, match="cannot be read"):
        answer_over_http("http://127.0.0.1:9", stored, SILENT, tmp_path / "nothing")


def test_a_reply_that_is_no_json(stored):
    page = {"/health": (200, "not an object")}
    with Server(lambda _: (400, "broken"), page) as server, pytest.raises(InputError, match="refuses record r0: 400"):
        answer_over_http(server.url, stored, SILENT)


def test_answers_of_another_server_version_are_not_used_again(tiny, evaluation, folder):
    options = Options(batch_tokens=1500)
    pages = {"/openapi.json": (200, {"info": {"title": "clef-systemone", "version": "1"}})}
    with Server(good, pages) as server:
        for version, files in (("1", 1), ("1", 1), ("2", 2)):
            pages["/openapi.json"][1]["info"]["version"] = version
            verify(tiny.path, tiny.path, [evaluation], folder, backend=server.url, options=options)
            assert len(list(folder.glob("candidate-*.parquet"))) == files
