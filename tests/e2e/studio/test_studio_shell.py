"""What all tabs of the studio share: text and model, links, looks, code, errors."""

from __future__ import annotations

import io
import shlex
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from live import Live, serving
from pages import SPECIMENS, TABS, TIMEOUT_MS, contrast, settled, shown, wait_for_tab

from elman import api


def test_one_text_and_one_model_for_all_tabs(live: Live, page: Any) -> None:
    page.goto(live.address)
    wait_for_tab(page, "Playground")
    page.fill("#text", "the student")
    page.select_option("#control-model", "ngram")
    page.fill("#control-max_tokens", "3")
    page.click("#go")
    page.wait_for_selector("#again:enabled")
    written = page.inner_text("#output")
    page.click("#tabs >> text=Surprisal")
    settled(page, "Surprisal")
    assert page.input_value("#text") == "the student"
    assert page.input_value("#control-model") == "ngram"
    # A model that cannot do what a tab does is set aside, not forgotten.
    page.click("#tabs >> text=Inside")
    settled(page, "Inside")
    assert page.input_value("#control-model") == "chars"
    page.click("#tabs >> text=Surprisal")
    wait_for_tab(page, "Surprisal")
    assert page.input_value("#control-model") == "ngram"
    page.fill("#text", "the old book")
    # Each tab keeps what it shows; the text is the new one.
    page.click("#tabs >> text=Playground")
    wait_for_tab(page, "Playground")
    assert page.input_value("#text") == "the old book"
    assert page.input_value("#control-max_tokens") == "3"
    assert page.inner_text("#output") == written


@pytest.mark.parametrize(
    ("specimen", "tab"), [("classifier", "Classify"), ("conditional", "Playground")]
)
def test_the_first_usable_tab_is_the_landing_page(page: Any, specimen: str, tab: str) -> None:
    with serving({"only": api.load(SPECIMENS / f"format-1-{specimen}")}, warm=False) as live:
        page.goto(live.address)
        wait_for_tab(page, tab)
        assert page.locator("#tabs a").first.inner_text() == tab
        if tab == "Classify":
            # A link to a tab that no model can use says what to do, and where to go.
            page.goto(f"{live.address}/#/next")
            page.wait_for_selector("main .button")
            assert "elman serve" in page.inner_text("main")
            page.click("main .button >> text=Classify")
            wait_for_tab(page, "Classify")


def test_a_card_for_each_model(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/models")
    page.wait_for_selector(".model-card")
    assert page.locator(".model-card h2").all_inner_texts() == list(live.served)
    card = page.locator(".model-card", has=page.locator("h2", has_text="words"))
    text = card.inner_text()
    found = live.served["words"].card
    assert "LSTM, 1 layer of 32 units" in text
    assert "toy.txt" in text
    assert f"{found.parameters:,} parameters" in text
    assert f"{found.figures['perplexity']:.4g} on its validation text" in text
    assert found.sample
    assert found.sample.split()[0] in text
    card.locator("text=look inside").click()
    settled(page, "Inside")
    assert page.input_value("#control-model") == "words"


@pytest.mark.parametrize("title", [title for title in TABS if title != "Training"])
def test_links_restore_what_was_seen(live: Live, page: Any, title: str) -> None:
    link = f"{live.address}/#/{TABS[title]}"
    page.goto(link)
    seen = shown(page, title)
    for value in parse_qs(TABS[title].partition("?")[2]).values():
        if not value[0].isdecimal():
            assert value[0].partition(",")[0] in str(seen)
    assert page.locator(".error").count() == 0
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert shown(page, title) == seen


def test_links_of_before_have_their_text(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/playground?prompt=the+book&model=words")
    wait_for_tab(page, "Playground")
    assert page.input_value("#text") == "the book"


@pytest.mark.parametrize(
    ("width", "scheme", "presents"),
    [(390, "dark", False), (600, "light", False), (1920, "dark", True)],
    ids=["phone", "zoom-200", "projector"],
)
def test_every_tab_is_usable(
    live: Live, browser: Any, width: int, scheme: str, presents: bool
) -> None:
    """On a phone; at 200 % zoom, where a window of 1200 is 600 wide; on a projector."""
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(live.address)
    wait_for_tab(page, "Playground")
    assert page.locator("#tabs a").all_inner_texts() == list(TABS)
    if presents:
        page.keyboard.press("Alt+p")
    for number, (title, link) in enumerate(TABS.items(), start=1):
        if number <= 10:
            page.keyboard.press(f"Alt+{number % 10}")
            wait_for_tab(page, title)
        page.goto(f"{live.address}/#/{link}")
        settled(page, title)
        selected = page.locator('#tabs [aria-selected="true"]')
        assert selected.inner_text() == title
        box = selected.bounding_box()
        assert 0 <= box["x"] <= width - box["width"], f"the tab {title} is out of sight"
        found = page.evaluate("document.documentElement.scrollWidth")
        assert found <= width, f"{title} is wider than the window"
        if presents:
            assert page.locator(".lead").is_hidden()
            assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 20
        else:
            assert contrast(page) >= 4.5, f"{title} is hard to read"
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != scheme
    # Arrow keys within the tabs, and Enter to choose.
    page.focus('#tabs [aria-selected="true"]')
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_tab(page, "Next word")
    context.close()


@pytest.mark.parametrize("title", [title for title in TABS if title != "Models"])
def test_every_tab_has_code(live: Live, page: Any, title: str) -> None:
    page.goto(f"{live.address}/#/{TABS[title]}")
    settled(page, title)
    page.click("#code summary")
    page.wait_for_function("document.querySelector('#code pre').textContent")
    command = shlex.split(page.inner_text("#code pre"))
    assert command[:2] == ["curl", "-s"]
    if title != "Lab":  # it would train
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert '"error"' not in answer
        assert answer.startswith("{")
    page.click("#code >> text=Python")
    compile(page.inner_text("#code pre"), title, "exec")
    page.click("#code >> text=Command line")
    assert "elman " in page.inner_text("#code pre")


def test_the_code_does_what_the_tab_does(live: Live, page: Any, words: Path) -> None:
    page.goto(f"{live.address}/#/{TABS['Playground']}")
    page.click("#go")
    page.wait_for_selector("#again:enabled")
    page.click("#code summary")
    page.click("#code >> text=Python")
    code = page.inner_text("#code pre").replace("runs/words", str(words))
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, {})
    assert ("the" + printed.getvalue()).split() == page.inner_text("#output").split()


def test_names_with_markup_are_text(page: Any, words: Path, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>&amp;<b>bold</b>"
    run = tmp_path / "<img src=x>"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"kind": "step", "step": 1, "loss": 2.0}\n')
    with serving({name: api.load(words)}, runs=tmp_path, warm=False) as live:
        for link in ("playground", "next", "surprisal", "decoding", "inside", "models", "training"):
            page.goto(f"{live.address}/#/{link}?text=%3Cb%3Ethe%3C/b%3E+book")
            page.wait_for_selector("main .card")
            page.wait_for_function(
                "name => [document.querySelector('main').textContent, ...[...document"
                ".querySelectorAll('option')].map(e => e.textContent)].some(t => t.includes(name))",
                arg=run.name if link == "training" else name,
            )
            assert page.locator("main img").count() == 0
            assert page.locator("main b >> text=/^(bold|the)$/").count() == 0


def test_a_server_that_has_gone_is_told_in_words(page: Any, words: Path) -> None:
    with serving({"words": api.load(words)}, warm=False) as live:
        page.goto(f"{live.address}/#/playground?text=the")
        page.wait_for_selector("#go")
    page.click("#go")
    page.wait_for_selector(".error")
    assert page.inner_text(".error") == "The server does not answer. Is it still running?"
    page.complaints.clear()  # the browser's own complaint


def test_a_key_is_asked_for(browser: Any, words: Path) -> None:
    with serving({"words": api.load(words)}, api_key="sesame", warm=False) as live:
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
