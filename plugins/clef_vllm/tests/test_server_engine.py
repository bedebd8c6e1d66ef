"""The console script with a real engine, once for all tests here: what public clients send, and what must come back."""

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from mixed import mixed_records
from nano import load_reference, make_image, records
from serving import GOOD, Server, running

pytest.importorskip("vllm")
pytest.importorskip("fastapi")
pytestmark = pytest.mark.engine

NOUL = {"type": "noul", "instructions": "Is it so?"}
SCORE = {"type": "score", "criteria": ["low", "high"]}
PARITY_RECORDS = 500
LIMIT = 4096


@pytest.fixture(scope="module")
def server(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(nano, tmp_path_factory.mktemp("server"), "--max-model-len", str(LIMIT)) as server:
        # 3.21: the port answers while the model loads, and requests are told to come back.
        seen = server.wait_until_ready()
        assert {(503, "loading"), (200, "ready")} <= seen
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


def gauges(client: httpx.Client) -> dict[str, float]:
    lines = [line.split(" ") for line in client.get("/metrics").text.splitlines() if line.startswith("clef_")]
    return {name: float(value) for name, value in lines}


def together(url: str, bodies: list[Any], clients: int = 64) -> list[httpx.Response]:
    """Answers in the order of the bodies, so many at a time."""

    async def main() -> list[httpx.Response]:
        turn = asyncio.Semaphore(clients)
        async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=clients)) as client:

            async def ask(body: Any) -> httpx.Response:
                async with turn:
                    return await client.post("/v1/systemone", json=body)

            return await asyncio.gather(*map(ask, bodies))

    return asyncio.run(main())


def values(answer: dict[str, Any]) -> dict[str, float]:
    return answer.get("probabilities") or {"noul": answer["noul"]}


def test_records_from_64_clients_equal_systemone(server: Server, nano: Path, record_property: Any) -> None:
    """Every answer is its own record's (each differs), in the release's shape and order, and within bfloat16's noise.

    The reference runs in float32, which a CPU multiplies some ten times as fast.
    """
    code = load_reference()
    model, processor = code.load_release_model(nano, device="cpu", dtype=torch.float32)
    given = mixed_records(PARITY_RECORDS)
    worst = 0.0
    for record, response in zip(given, together(server.url, given), strict=True):
        assert response.status_code == 200, response.text
        expected, found = code.systemone(model, processor, record, max_length=LIMIT), response.json()
        assert (found["model"], found["usage"], list(found["answers"])) == (
            expected["model"], expected["usage"], list(expected["answers"]))  # fmt: skip
        for name, answer in expected["answers"].items():
            assert list(found["answers"][name]) == list(answer)
            assert list(values(found["answers"][name])) == list(values(answer))
            for option, value in values(answer).items():
                worst = max(worst, abs(value - values(found["answers"][name])[option]))
    record_property("max |Δp| over 500 records", f"{worst:.4f}")
    assert worst <= 0.02


def test_long_and_wide_records_equal_systemone(client: httpx.Client, nano: Path) -> None:
    code = load_reference()
    model, processor = code.load_release_model(nano, device="cpu")
    for number, record in enumerate(records()):
        body = {"model": f"m{number}", **record}
        expected, found = code.systemone(model, processor, body), client.post("/v1/systemone", json=body).json()
        assert found["usage"] == expected["usage"]
        for name, answer in expected["answers"].items():
            for option, value in values(answer).items():
                assert abs(value - values(found["answers"][name])[option]) <= 0.02


def questions(count: int) -> dict[str, Any]:
    ten = {str(i): None for i in range(10)}
    return {f"q{i}": {"type": "choice", "criteria": ten} for i in range(count)}


def data_url(image: Any, kind: str = "png") -> str:
    buffer = io.BytesIO()
    image.save(buffer, format=kind.upper())
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode()


def one(**question: Any) -> dict[str, Any]:
    return {**GOOD, "questions": {"q": question}}


PICTURE = make_image(3, 96, 64)
PNG = data_url(PICTURE).partition(",")[2]
# What was met in public: number in the list of faults, body, status, and a part of the answer or of the message.
WILD: list[tuple[str, Any, int, str]] = [
    ("3.03 null side", one(**NOUL, criteria={"true": None}), 200, '"noul"'),
    ("3.03 unknown keys", one(**NOUL, criteria={"True": "x", "maybe": "y"}), 400, "q: criteria of a noul are true"),
    ("3.04 numbers as ids", one(type="choice", criteria={"10": None, "2": None, "1": None}), 200, '"10":'),
    ("3.07 one option", one(type="choice", criteria={"only": None}), 200, '"confidence":1.0'),
    ("3.08 number", one(type="noul", instructions=0), 400, "q: instructions must be text"),
    ("3.08 bool", one(type="noul", instructions=False), 400, "q: instructions must be text"),
    ("3.08 empty list", one(type="noul", instructions=[]), 200, '"noul"'),
    ("3.08 spaces", one(type="noul", instructions="  "), 200, '"noul"'),
    ("3.08 null and empty", one(type="noul", instructions=""), 200, '"noul"'),
    ("3.13 long state", {**GOOD, "state": "word " * 10_000}, 200, f'"input_tokens":{LIMIT}'),
    ("3.13 long schema", one(type="noul", instructions="word " * 10_000), 400, "schema requires"),
    *((f"3.14 state {state!r}", {**GOOD, "state": state}, 200, '"noul"') for state in (None, 0, False, "", [], {})),
    ("3.14 no state", {"model": "m", "questions": GOOD["questions"]}, 400, "state is required"),
    ("3.15 line break", {**GOOD, "questions": {"a\nTYPE: score": NOUL}}, 400, "control characters"),
    ("3.15 space", {**GOOD, "questions": {"a b": NOUL}}, 400, "1 to 100 characters"),
    ("3.15 long id", {**GOOD, "questions": {"a" * 101: NOUL}}, 400, "1 to 100 characters"),
    ("3.15 option", one(type="choice", criteria={"a\nOPTION 2": None}), 400, "without control characters"),
    ("3.16 65 questions", {**GOOD, "questions": questions(65)}, 400, "65 questions, at most 64"),
    ("3.16 options", one(type="choice", criteria={str(i): None for i in range(256)}), 400, "256 options, at most 255"),
    ("3.16 11 levels", one(type="score", criteria=["x"] * 11), 400, "11 levels, at most 10"),
    ("3.17 data URL", {**GOOD, "images": [data_url(PICTURE)]}, 200, '"noul"'),
    ("3.17 upper", {**GOOD, "images": ["DATA:IMAGE/PNG" + data_url(PICTURE)[14:]]}, 200, '"noul"'),
    ("3.17 jpeg, webp", {**GOOD, "images": [data_url(PICTURE, "jpeg"), data_url(PICTURE, "webp")]}, 200, '"noul"'),
    ("3.17 object", {**GOOD, "images": [{"content_type": "image/png", "base64": PNG}]}, 200, '"noul"'),
    ("3.17 address", {**GOOD, "images": ["http://127.0.0.1:1/a.png"]}, 400, "image 0: expected a data URL"),
    ("3.17 gif", {**GOOD, "images": [data_url(PICTURE), data_url(PICTURE, "gif")]}, 400, "image 1: content type"),
    ("3.17 five", {**GOOD, "images": [data_url(PICTURE)] * 5}, 400, "5 images, at most 4"),
    ("3.17 bad base64", {**GOOD, "images": ["data:image/png;base64,&&"]}, 400, "image 0: not valid base64"),
    ("3.19 1 x 1", {**GOOD, "images": [data_url(make_image(1, 1, 1))]}, 200, '"noul"'),
    ("3.19 narrow", {**GOOD, "images": [data_url(make_image(1, 2, 900))]}, 400, "an image of 2 x 900 pixels"),
    ("3.19 palette", {**GOOD, "images": [data_url(PICTURE.convert("P"))]}, 200, '"noul"'),
    ("3.19 truncated", {**GOOD, "images": [data_url(PICTURE)[:300]]}, 400, "image 0: "),
    ("3.20 video", {**GOOD, "videos": ["data:video/mp4;base64,AAAA"]}, 400, "videos are not supported"),
    ("3.23 unknown field", {**GOOD, "model": "anything at all", "temperature": 1}, 200, '"model":"anything at all"'),
    ("3.23 model", {**GOOD, "model": 1}, 400, "model is required"),
    ("3.24 list", [], 400, "must be an object"), ("3.24 text", "x", 400, "must be an object"),
    ("3.24 question null", {**GOOD, "questions": {"q": None}}, 400, "q: a question must be an object"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "words"), [row[1:] for row in WILD], ids=[row[0] for row in WILD])
def test_requests_in_the_wild(client: httpx.Client, body: Any, status: int, words: str) -> None:
    response = client.post("/v1/systemone", json=body)
    assert response.status_code == status, response.text
    assert words in response.text.replace('\\"', '"')
    if status == 200:
        assert list(response.json()["answers"]) == list(body["questions"])
    else:
        assert response.json()["error"]["type"] == "invalid_request_error"
    if words.startswith('"input_tokens"'):
        assert response.headers["x-clef-truncated"] == "1"


def test_order_and_confidence(client: httpx.Client) -> None:
    """3.04, 3.16, 3.22: request order although the prompt sorts; confidence is the largest probability."""
    numeric = one(type="choice", criteria={"10": None, "2": None, "1": None}) | {"return": ["logits"]}
    body = client.post("/v1/systemone", json=numeric).json()
    answer = body["answers"]["q"]
    assert (list(answer["probabilities"]), list(body["logits"]["q"])) == (["10", "2", "1"], ["1", "10", "2"])
    assert answer["confidence"] == max(answer["probabilities"].values())
    assert max(body["logits"]["q"], key=body["logits"]["q"].__getitem__) == answer["choice"]
    many = {**GOOD, "questions": {**{f"q{i}": NOUL for i in range(12)}, "last": SCORE}}
    response = client.post("/v1/systemone", json=many)
    assert response.status_code == 200, response.text
    answers = response.json()["answers"]
    assert list(answers) == list(many["questions"])
    assert set(answers["last"]) == {"type", "score", "confidence", "legend", "probabilities"}


def test_200_clients_that_leave_leave_nothing_behind(server: Server, client: httpx.Client) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url, limits=httpx.Limits(max_connections=None)) as many:
            body = {**GOOD, "state": "long " * 1500}
            tasks = [asyncio.create_task(many.post("/v1/systemone", json=body)) for _ in range(200)]
            await asyncio.wait(tasks, timeout=1.5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(leave())
    assert client.post("/v1/systemone", json=GOOD).status_code == 200
    for _ in range(1000):
        found = gauges(client)
        if found["clef_in_flight"] == found["clef_working"] == found["clef_queued"] == 0:
            break
    assert found["clef_in_flight"] == found["clef_working"] == found["clef_queued"] == 0
    assert found['clef_records_total{outcome="cancelled"}'] > 0
    running_in_vllm = [line for line in client.get("/metrics").text.splitlines() if "num_requests_running{" in line]
    assert all(line.endswith(" 0.0") for line in running_in_vllm)


def test_no_request_that_the_openapi_page_leads_to_is_answered_with_500(server: Server) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    tried = []

    @given(case=schema.as_strategy())
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    def explore(case: Any) -> None:
        response = case.call(timeout=300)
        tried.append(response.status_code)
        assert response.status_code < 500, (case, response.text)

    explore()
    assert len(tried) >= 150


def test_lines_through_the_engine(client: httpx.Client) -> None:
    given = [{"model": f"m{i}", **records()[0]} for i in range(8)]
    text = "\n".join([*map(json.dumps, given), "{"])
    response = client.post("/v1/systemone", content=text, headers={"content-type": "application/x-ndjson"})
    bodies = [json.loads(line) for line in response.text.splitlines()]
    assert [body.get("model") for body in bodies] == [*(f"m{i}" for i in range(8)), None]
    assert bodies[-1]["error"]["type"] == "invalid_request_error"


def test_clef_evals_works_unmodified(server: Server) -> None:
    """Opt in: pip install --no-deps clef-evals==0.2.0"""
    evals = pytest.importorskip("clef_evals", reason="opt in: pip install --no-deps clef-evals==0.2.0")
    from clef_evals.config import ClefConfig

    config = ClefConfig(account_id="a", api_token="t", base_url=f"{server.url}/client/v4")
    teams = {"billing": "Payments or invoices", "technical": "Bugs or outages"}
    with evals.ClefJudge(config) as judge:
        decision = judge.judge_choice("Checkout is down", "Which team?", teams)
        assert decision.choice in teams
        assert set(decision.probabilities) == set(teams)
        assert 0 <= judge.judge_binary("Checkout is down", "Is this urgent?") <= 1
        result = judge.evaluate([
            {"state": "Refund please", "instructions": "Which team?", "criteria": teams, "gold": "billing"},
            {"state": "Checkout is down", "instructions": "Is this urgent?", "gold": True},
        ])  # fmt: skip
    assert "failures=0" in result.summary()
    with pytest.raises(evals.ClefAPIError, match="instructions must be text"):
        evals.ClefClient(config).run("s", {"q": evals.Noul(instructions=7)})


def test_clef_router_works_unmodified(server: Server) -> None:
    """Opt in: pip install --no-deps clef-router==0.3.0"""
    router = pytest.importorskip("clef_router", reason="opt in: pip install --no-deps clef-router==0.3.0")
    config = router.RouterConfig.from_env(account_id="a", api_token="t", base_url=f"{server.url}/client/v4")
    with router.ClefRouter(config=config) as client:
        assert client.route("Design a rate limiter").tier in ("cheap", "frontier")
        decision = client.decide({"invoice_total": 1250}, {"large": {"type": "noul", "instructions": "Above 1000?"}})
        assert decision.usage.input_tokens > 0
        assert set(decision.answers) == {"large"}
