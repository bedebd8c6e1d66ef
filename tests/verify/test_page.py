"""The page in a real browser: readable in light, dark and on paper, sorted by keyboard, no network.

Needs Chromium and playwright (`pip install playwright`); without them it is skipped, unless CLEFQUANT_BROWSER_TESTS=1.
CLEFQUANT_SCREENSHOTS names a folder that keeps the pictures.
"""

import copy
import os
import shutil
from pathlib import Path

import pytest

from clefquant.verify.html import html
from clefquant.verify.run import Options, verify

REQUIRED = os.environ.get("CLEFQUANT_BROWSER_TESTS") == "1"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if not REQUIRED:
    pytest.importorskip("playwright", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory, quantized, tiny, evaluation):
    out = tmp_path_factory.mktemp("page") / "report"
    return verify(quantized("mxfp4").path, tiny.path, [evaluation], out, options=Options(batch_tokens=3000))


@pytest.fixture(scope="module")
def full(report, tmp_path_factory) -> Path:
    """The page with every optional part: a gate, a frontier, speed, an answer that is missing."""
    value = copy.deepcopy(report.value)
    limit = {"row": "All", "limit": "kl <= 0.003", "measure": "kl", "found": 0.1, "passed": False, "why": ""}
    value["gate"] = {"judge": "bound", "limits": [limit, {**limit, "limit": "nan == 0", "found": 0, "passed": True}]}
    found = {"kl": 1e-4, "error": 1e-5, "saved": 1000, "rank": {"rank": 1, "low": 1.0, "high": 2.0}}
    failed = {"kl": None, "error": None, "saved": 2000, "rank": None}
    units = [{"name": f"layers.{n}.mlp", "layer": n, "kind": "mlp", "formats": {"fp8": found}} for n in range(3)]
    units[1]["formats"] = {"fp8": found, "nvfp4": failed}
    value["plots"]["frontier"] = {
        "points": [[300_000, 0.1], [400_000, 0.01], [600_000, 0.0]],
        "measured": [{"bytes": 410_000, "kl": 0.02, "error": None}],
        "sweep": {"formats": ["fp8", "nvfp4"], "noise": 1e-9, "units": units},
    }
    value["performance"] = {
        "engine": "vLLM 0.33",
        "versions": {"torch": "2.12"},
        "chip": "one GPU",
        "device_memory_gib": 20.5,
        "host_memory_gib": 3.25,
        "throughput": {"records_per_s": 40.0, "tokens_per_s": 20000.0, "concurrency": "all at once"},
        "latency": [{"tokens": "≤ 128", "requests": 20, "median_tokens": 90, "p50_ms": 8.1, "p95_ms": 9.9}],
    }
    value["worst"][0] |= {"error": "the engine failed", "kl": None, "candidate_top": None, "agree": False}
    path = tmp_path_factory.mktemp("full") / "report.html"
    path.write_text(html(value), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def opened(browser, path, scheme="light"):
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    return page, asked, complaints


def keep(page, name):
    if folder := os.environ.get("CLEFQUANT_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_disk_and_asks_the_network_nothing(browser, full, scheme):
    page, asked, complaints = opened(browser, full, scheme)
    keep(page, scheme)
    assert asked == [full.as_uri()]
    assert complaints == []
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    bright = lambda colour: sum(map(int, colour[4:-1].split(",")))  # noqa: E731
    assert (bright(paper) > bright(ink)) == (scheme == "light")
    page.close()


def test_the_verdict_is_on_the_first_screen(browser, full):
    page, _, _ = opened(browser, full)
    box = page.locator(".verdict").bounding_box()
    assert box["y"] + box["height"] < 900
    assert page.locator(".cards li").first.bounding_box()["y"] < 900
    page.close()


def test_a_speed_is_shown_with_what_ran_it(browser, full):
    page, _, _ = opened(browser, full)
    text = page.locator("h2:has-text('Speed') + p").inner_text()
    assert text.startswith(
        "vLLM 0.33 (torch 2.12), one GPU; 20.5 GiB of device memory and 3.25 GiB of host memory in use"
    )
    assert "All at once: 40.0 records/s, 20,000.0 tokens/s." in text
    page.close()


def test_tables_sort_by_keyboard(browser, full):
    page, _, _ = opened(browser, full)
    table = page.locator("table.sortable").first
    button = table.locator("thead th button").nth(2)  # questions
    button.focus()
    page.keyboard.press("Enter")
    assert table.locator("thead th").nth(2).get_attribute("aria-sort") == "descending"
    first = [int(text) for text in table.locator("tbody tr:not(.total) td:nth-of-type(2)").all_inner_texts()]
    assert first == sorted(first, reverse=True)
    page.keyboard.press("Space")
    again = [int(text) for text in table.locator("tbody tr:not(.total) td:nth-of-type(2)").all_inner_texts()]
    assert again == sorted(first)
    assert table.locator("tbody tr").last.locator("th").inner_text() == "All"
    page.close()


def test_worst_questions_open_by_keyboard_and_show_text_as_text(browser, full):
    page, _, _ = opened(browser, full)
    summary = page.locator("details summary").nth(1)
    summary.focus()
    page.keyboard.press("Enter")
    opened_one = page.locator("details").nth(1)
    assert opened_one.get_attribute("open") is not None
    assert opened_one.locator("pre").is_visible()
    assert page.locator("details b:has-text('late')").count() == 0
    keep(page, "details")
    page.close()


def test_nothing_is_wider_than_a_telephone(browser, full):
    page, _, _ = opened(browser, full)
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, "narrow")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.close()


def test_paper(browser, full, tmp_path):
    page, _, _ = opened(browser, full, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    keep(page, "print")
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    page.close()
