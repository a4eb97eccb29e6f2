"""The studio in a real browser: every tab is driven as a person would."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from live import Live, serving

from elman import api
from elman.tasks import task_named
from elman.testing import TOY_LABELLED, TOY_TREEBANK

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("Chromium is not on this machine (Debian: chromium)", allow_module_level=True)

TIMEOUT_MS = 120_000
"""Only reached where something is broken: the machine may be busy."""


SMALL = ("--steps", 5, "--set", "model.hidden_size=16", "--set", "model.embedding_size=16")
SMALL_DECODER = tuple(str(word).replace("model.", "model.decoder.") for word in SMALL)


@pytest.fixture(scope="module")
def live(
    model: Path,
    words: Path,
    words_too: Path,
    toy: Path,
    elman: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Live]:
    """A server of everything that has a tab."""
    folder = tmp_path_factory.mktemp("studio")
    (folder / "treebank.conllu").write_text(TOY_TREEBANK, encoding="utf-8")
    (folder / "labelled.tsv").write_text(TOY_LABELLED, encoding="utf-8")
    (folder / "upper.txt").write_text(toy.read_text(encoding="utf-8").upper(), encoding="utf-8")
    tokenizer = ("--set", f"tokenizer.file={words / 'tokenizer.json'}")
    for task, arguments in {
        "ngram": (toy, *tokenizer),
        "tagger": (folder / "treebank.conllu", *SMALL),
        "classifier": (folder / "labelled.tsv", *SMALL),
        "translator": (toy, folder / "upper.txt", *SMALL_DECODER),
    }.items():
        result = elman("train", task, *arguments, "--out", folder / task)
        assert result.code == 0, result.err
    models = {
        "chars": api.load(model),
        "words": api.load(words),
        "other": api.load(words_too),
        "ngram": api.load(folder / "ngram"),
        "mixed": api.load(f"0.5*{words}+0.5*{folder / 'ngram'}"),
        "tagger": api.load(folder / "tagger"),
        "classifier": api.load(folder / "classifier"),
        "translator": api.load(folder / "translator"),
    }
    with serving(models, runs=words.parent, lab=True) as live:
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
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert not complaints
    # It works offline: nothing comes from another host than the server's own.
    elsewhere = r"(?!http://127\.0\.0\.1:\d+/|data:|blob:)"
    assert [url for url in asked if re.match(elsewhere, url)] == []


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
    told = page.inner_text(".error")
    assert told == "max_tokens is too large: 99,999,999 (limit 8,192)."
    # The browser itself reports the status of the answer.
    page.complaints[:] = [text for text in page.complaints if "400" not in text]


def test_surprisal_of_two_models(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/surprisal?model=words&other=other")
    page.fill("#text", "the student opened\nher book")
    rows = live.served["words"].handle.surprisal("the student opened\nher book", unit="word")
    # Of the text that was there before there are results too, with more words.
    page.wait_for_function(
        "wanted => document.querySelectorAll('.result').length === 3 &&"
        " document.querySelectorAll('.result')[0].querySelectorAll('.token').length === wanted",
        arg=len(rows),
    )
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
    names = ["words", "chars", "ngram", "mixed"]
    page.goto(f"{live.address}/#/next?prefix=the&models={','.join(names)}&k=5")
    page.wait_for_selector(".result >> nth=3")
    for name in names:
        expected = live.served[name].handle.next("the", k=5)
        card = page.locator(".result", has=page.locator("h2", has_text=name))
        shown = card.locator(".word").all_inner_texts()
        assert [word.replace("␣", " ") for word in shown] == [token for token, _ in expected]
    expected = live.served["words"].handle.next("the", k=5)
    card = page.locator(".result", has=page.locator("h2", has_text="words"))
    card.locator("button >> nth=0").click()
    page.wait_for_function("document.querySelector('#prefix').value !== 'the'")
    assert page.input_value("#prefix").split() == ["the", expected[0][0]]
    page.wait_for_function("!document.querySelector('#back').disabled")
    page.click("#back")
    assert page.input_value("#prefix") == "the"
    page.locator("label.chip", has_text="other").click()
    page.wait_for_selector(".result >> nth=4")
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
        page.select_option("#control-along", "tokens")
        assert "along=tokens" in page.url
        page.select_option("#control-along", "updates")
        page.locator("svg.chart").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#tip").split() == ["2", "updates", "going-on", "4"]
    finally:
        shutil.rmtree(run)


TABS = {
    "Playground": "playground?model=words&prompt=the&max_tokens=7&temperature=0.5&stop=x&seed=3",
    "Surprisal": "surprisal?text=the+book&model=words&other=ngram&unit=token",
    "Next word": "next?prefix=the+student&models=words%2Cngram&k=3",
    "Inside": "inside?text=the+student+opened&model=words&part=f&units=16&target=2",
    "Training": "training?runs=words&along=minutes",
    "Translate": "translate?text=the+book&model=translator",
    "Tag": "tag?text=the+student+opened+her+book&model=tagger",
    "Classify": "classify?text=good+book&model=classifier",
    "Lab": "lab?claim=C3&knob=5&seeds=3",
}
"""Every tab, with a link that says what is to be seen in it."""


def shown(page: Any, title: str) -> dict[str, Any]:
    """What a tab shows once everything has arrived."""
    wait_for_tab(page, title)
    page.wait_for_load_state("networkidle")
    values = page.evaluate(
        "[...document.querySelectorAll('main input, main select, main textarea')]"
        ".map(e => [e.id, e.type === 'checkbox' ? e.checked : e.value])"
    )
    return {"text": page.inner_text("main"), "controls": values}


def wait_for_tab(page: Any, title: str) -> None:
    has_title = "title => document.querySelector('h1')?.textContent === title"
    page.wait_for_function(has_title, arg=title)


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


def test_every_tab_on_a_phone_in_the_dark_by_keys(live: Live, browser: Any) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True, bypass_csp=True
    )
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(live.address)
    page.wait_for_selector("#go")
    assert page.locator("#tabs a").all_inner_texts() == list(TABS)
    for number, (title, link) in enumerate(TABS.items(), start=1):
        page.keyboard.press(f"Alt+{number}")
        wait_for_tab(page, title)
        page.goto(f"{live.address}/#/{link}")
        page.wait_for_function("!document.querySelector('main').textContent.includes('Reading …')")
        selected = page.locator('#tabs [aria-selected="true"]')
        assert selected.inner_text() == title
        box = selected.bounding_box()
        assert 0 <= box["x"] <= 390 - box["width"], f"the tab {title} is out of sight"
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{title} is wider than a phone"
        assert contrast(page) >= 4.5, f"{title} is hard to read"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert contrast(page) >= 4.5
    # Arrow keys within the tabs, and Enter to choose.
    page.focus('#tabs [aria-selected="true"]')
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_tab(page, "Surprisal")
    context.close()


def test_lab(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/lab?claim=C3&seeds=2&size=tiny")
    page.wait_for_selector("#run")
    assert page.is_disabled("#run")  # before a prediction
    page.focus('input[value="does not hold here"]')
    page.keyboard.press("Space")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("document.querySelector('#run').textContent === 'Run it again'")
    assert "✓ holds You predicted: does not hold here." in page.inner_text("#verdict")
    assert page.locator("svg.chart path").count() >= 2
    # Turn the knob, and compare.
    page.select_option("#control-knob", "5")
    page.click("#run")
    page.wait_for_function("document.querySelector('#run').textContent === 'Run it again'")
    assert "does not hold here" in page.inner_text("#verdict")
    assert page.locator("text=As the knob turns").is_visible()
    page.click("summary")
    assert "def step" in page.inner_text("pre.code")


def contrast(page: Any) -> float:
    """How much the words of a page differ from the paper, as WCAG counts it; 4.5 is enough."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    style = "getComputedStyle(document.querySelector('{}'))"
    ink = page.evaluate(style.format(".lead") + ".color")
    paper = page.evaluate(style.format("html") + ".backgroundColor")
    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)[:2]
    return (light + 0.05) / (dark + 0.05)


def test_a_translation_and_where_it_looked(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/translate")
    page.click("#go-translate")
    assert "Write a text above." in page.inner_text("main")
    page.fill("#text", "the student opened the book.")
    page.press("#text", "Control+Enter")
    page.wait_for_selector("canvas")
    handle = live.served["translator"].handle
    alignment = handle.align("the student opened the book.")
    assert page.inner_text(".prose") == handle.translate("the student opened the book.").strip()
    page.focus("canvas")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".readout").startswith(f"{alignment.target[0]} ← {alignment.source[0]}:")


def test_tags_and_classes(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/tag")
    page.fill("#text", "the student opened her book")
    page.click("#go-tag")
    page.wait_for_selector(".tag-word")
    words = [text.split("\n") for text in page.locator(".tag-word").all_inner_texts()]
    tagged = live.served["tagger"].handle.tag("the student opened her book")
    assert [tuple(word) for word in words] == tagged
    page.goto(f"{live.address}/#/classify")
    page.fill("#text", "a good book")
    page.click("#go-classify")
    page.wait_for_selector(".bars .word")
    found = live.served["classifier"].handle.classify("a good book")
    ranked = sorted(found.probabilities, key=lambda label: -found.probabilities[label])
    assert page.locator(".bars .word").all_inner_texts() == ranked
    assert page.inner_text(".prose") == found.label


class Entities:
    """A tagger that finds one entity of two words."""

    kind = "entities"
    task = task_named("tagger")

    def tag(self, text: str) -> list[tuple[str, str]]:
        tags = ["O", "B-PER", "I-PER", "B-PER"]
        return list(zip(text.split(), tags, strict=True))


def test_words_of_one_entity_are_one_span(page: Any) -> None:
    with serving({"entities": Entities()}) as live:
        page.goto(f"{live.address}/#/tag?text=Did+Jeff+Elman+Ada")
        page.wait_for_selector(".tag-word")
        assert page.locator(".tag-word").all_inner_texts() == ["Did", "Jeff Elman\nPER", "Ada\nPER"]
        # There is no language model here, and the page says so in words.
        page.goto(f"{live.address}/#/playground")
        page.wait_for_function("document.querySelector('main').textContent.includes('elman serve')")


def test_a_server_that_has_gone_is_told_in_words(page: Any, words: Path) -> None:
    with serving({"words": api.load(words)}) as live:
        page.goto(f"{live.address}/#/playground?prompt=the")
        page.wait_for_selector("#go")
    page.click("#go")
    page.wait_for_selector(".error")
    assert page.inner_text(".error") == "The server does not answer. Is it still running?"
    page.complaints.clear()  # the browser's own complaint


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
