"""The studio in a real browser: every tab is driven as a person would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Live, serving

from elman import api
from elman.evaluate.translation import Alignment

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("Chromium is not on this machine (Debian: chromium)", allow_module_level=True)

TIMEOUT_MS = 120_000
"""Only reached where something is broken: the machine may be busy."""


@pytest.fixture(scope="module")
def live(model: Path, words: Path, words_too: Path) -> Iterator[Live]:
    lms = {"chars": api.load(model), "words": api.load(words), "other": api.load(words_too)}
    with serving(lms, runs=words.parent) as live:
        yield live


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not complain."""
    # Waiting for a condition evaluates code, which the pages themselves must not.
    context = browser.new_context(viewport={"width": 1200, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    page.complaints = complaints
    yield page
    context.close()
    assert not complaints


def test_playground(live: Live, page: Any) -> None:
    page.goto(live.address)
    page.fill("#prompt", "the student")
    page.select_option("#control-model", "words")
    page.fill("#control-max_tokens", "12")
    page.fill("#control-seed", "5")
    page.press("#prompt", "Control+Enter")
    page.wait_for_selector("#again:enabled")
    expected = live.served["words"].handle.generate(
        "the student", max_tokens=12, temperature=0.8, seed=5
    )
    assert page.inner_text("#output").split() == ("the student" + expected).split()
    page.hover("#output .token >> nth=2")
    assert page.locator("#tip tr").count() >= 8
    assert page.locator("#tip tr.chosen").count() == 1
    page.focus("#output .token >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.locator("#output .token >> nth=1").evaluate("e => e === document.activeElement")
    assert page.is_visible("#tip")
    # The same once more, then on from there.
    page.click("#again")
    page.wait_for_selector("#again:enabled")
    assert page.inner_text("#output").split() == ("the student" + expected).split()
    page.click("#keep")
    page.wait_for_selector("#again:enabled")
    assert page.input_value("#prompt") == "the student" + expected
    # A link restores all of it.
    address = page.url
    assert "model=words" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("#prompt")
    assert page.input_value("#prompt") == "the student" + expected
    assert page.input_value("#control-max_tokens") == "12"
    assert page.input_value("#control-model") == "words"


def test_playground_stops(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/playground?model=chars&prompt=the&max_tokens=8000")
    page.click("#go")
    page.wait_for_selector("#output .token")
    page.click("#stop")
    page.wait_for_selector("#again:enabled")
    assert "stopped" in page.inner_text("#status")
    engine = live.served["chars"].engine
    assert engine is not None


def test_errors_are_told_in_words(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/playground?model=words&prompt=the")
    page.fill("#control-max_tokens", "99999999")
    page.click("#go")
    page.wait_for_selector(".error")
    assert "8192 is the most" in page.inner_text(".error")
    # The browser itself reports the status of the answer.
    page.complaints[:] = [text for text in page.complaints if "400" not in text]


def test_surprisal_of_two_models(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/surprisal?model=words&other=other")
    page.fill("#text", "the student opened\nher book")
    page.wait_for_function(
        "[...document.querySelectorAll('.result')].length === 3 &&"
        " document.querySelector('.result .prose').textContent.startsWith('the')"
    )
    rows = live.served["words"].handle.surprisal("the student opened\nher book", unit="word")
    first = page.locator(".result >> nth=0")
    assert first.locator(".token").count() == len(rows)
    first.locator(".token >> nth=1").hover()
    assert f"{rows[1].surprisal:.2f} bits" in page.inner_text("#tip")
    page.locator(".result >> nth=2").locator(".token >> nth=1").hover()
    assert "difference" in page.inner_text("#tip")
    with page.expect_download() as caught:
        page.click("#tsv")
    table = Path(caught.value.path()).read_text(encoding="utf-8").splitlines()
    assert table[0].split("\t")[:5] == ["model", "line", "index", "text", "surprisal"]
    assert len(table) == 1 + 2 * len(rows)
    found = [line.split("\t") for line in table[1 : 1 + len(rows)]]
    assert [float(line[4]) for line in found] == pytest.approx([row.surprisal for row in rows])


def test_next_words_and_going_on(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/next?prefix=the&models=words,chars&k=5")
    page.wait_for_selector(".result >> nth=1")
    expected = live.served["words"].handle.next("the", k=5)
    card = page.locator(".result", has_text="words")
    shown = card.locator(".word").all_inner_texts()
    assert shown == [token for token, _ in expected]
    card.locator("button >> nth=0").click()
    page.wait_for_function("document.querySelector('#prefix').value !== 'the'")
    assert page.input_value("#prefix").split() == ["the", expected[0][0]]
    page.wait_for_function("!document.querySelector('#back').disabled")
    page.click("#back")
    assert page.input_value("#prefix") == "the"
    page.locator("label.chip", has_text="other").click()
    page.wait_for_selector(".result >> nth=2")
    assert "other" in page.url


def test_inside(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/inside?model=words&text=the+student+opened+her+book")
    page.wait_for_selector("canvas")
    page.focus("canvas")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".readout").startswith("unit ")
    page.select_option("#control-part", "f")
    page.wait_for_function("document.querySelector('main').textContent.includes('forget gate')")
    page.wait_for_function("document.querySelector('main h2').textContent.startsWith('forget')")
    words = page.locator("button.token")
    assert words.count() == 6
    words.nth(3).click()
    page.wait_for_function(
        "document.querySelectorAll('button.token')[3].getAttribute('aria-pressed') === 'true'"
    )
    assert "target=3" in page.url


def test_training_curves_follow_a_run(live: Live, page: Any, words: Path) -> None:
    run = words.parent / "going-on"
    run.mkdir()
    log = run / "metrics.jsonl"

    def report(step: int, **figures: Any) -> str:
        return json.dumps({"kind": "step", "step": step, **figures}) + "\n"

    try:
        log.write_text(report(1, loss=5.0, perplexity=148.0) + report(2, loss=4.0, perplexity=54.0))
        page.goto(f"{live.address}/#/training?runs=going-on")
        page.wait_for_function("document.querySelectorAll('svg.chart path').length >= 2")
        before = page.locator("svg.chart path").first.get_attribute("d")
        with log.open("a") as file:
            file.write(report(3, loss=3.0, perplexity=20.0, sample="the student"))
        page.wait_for_function(
            "before => document.querySelector('svg.chart path').getAttribute('d') !== before",
            arg=before,
        )
        page.wait_for_selector(".sample")
        assert page.inner_text(".sample") == "the student"
    finally:
        shutil.rmtree(run)


def test_tabs_keys_themes_and_a_phone(live: Live, browser: Any) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True, bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(live.address)
    page.wait_for_selector("#go")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    tabs = page.locator("#tabs a").all_inner_texts()
    assert tabs == ["Playground", "Surprisal", "Next word", "Inside", "Training"]
    for number, name in enumerate(tabs, start=1):
        page.keyboard.press(f"Alt+{number}")
        page.wait_for_function(
            "name => document.querySelector('h1')?.textContent === name", arg=name
        )
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{name} is wider than a phone"
    context.close()


class Fake:
    """A tagger, a classifier and a translator in one."""

    def info(self) -> dict[str, Any]:
        return {"kind": "fake"}

    def tag(self, text: str) -> list[tuple[str, str]]:
        return [(word, "B-X" if word.istitle() else "O") for word in text.split()]

    def classify(self, text: str) -> dict[str, Any]:
        return {"label": "good", "probability": 0.9, "probabilities": {"bad": 0.1, "good": 0.9}}

    def translate(self, text: str) -> str:
        return text.upper()

    def align(self, text: str) -> Alignment:
        words = text.split()
        weights = [[float(i == j) for i in range(len(words))] for j in range(len(words))]
        return Alignment(words, [word.upper() for word in words], weights)


def test_other_models_bring_tabs_of_their_own(page: Any, words: Path) -> None:
    models: dict[str, Any] = {"words": api.load(words), "fake": Fake()}
    with serving(models) as live:
        page.goto(f"{live.address}/#/translate?text=her+book")
        page.click("#go-translate")
        page.wait_for_selector("canvas")
        assert page.inner_text(".prose") == "HER BOOK"
        page.goto(f"{live.address}/#/tag?text=Her+book")
        page.click("#go-tag")
        page.wait_for_selector(".tag-word")
        assert page.locator(".tag-word small").all_inner_texts()[0] == "B-X"
        page.goto(f"{live.address}/#/classify?text=Her+book")
        page.click("#go-classify")
        page.wait_for_selector(".bars .word")
        assert page.locator(".bars .word").all_inner_texts() == ["good", "bad"]


def test_a_key_is_asked_for(browser: Any, words: Path) -> None:
    with serving({"words": api.load(words)}, api_key="sesame") as live:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(live.address)
        page.fill("#key input", "sesame")
        page.click("#key button")
        page.wait_for_selector("#go")
        page.close()


def test_the_api_as_a_page(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/docs")
    page.wait_for_selector("details")
    text = page.inner_text("main")
    assert "POST /v1/completions" in text
    assert "GET /v1/models" in text
