"""The tabs of language models: playground, next word, surprisal, decoding."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from live import Live, call
from pages import settled


def test_playground(live: Live, page: Any) -> None:
    page.goto(live.address)
    page.wait_for_selector("#go")
    page.fill("#text", "the student")
    page.select_option("#control-model", "words")
    page.fill("#control-max_tokens", "12")
    page.fill("#control-seed", "5")
    page.press("#text", "Control+Enter")
    page.wait_for_selector("#again:enabled")
    expected = live.served["words"].handle.generate(
        "the student", max_tokens=12, temperature=0.8, seed=5
    )
    assert page.inner_text("#output").split() == ("the student" + expected).split()
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
    assert page.input_value("#text") == "the student" + expected
    # A link restores all of it.
    address = page.url
    assert "model=words" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("#go")
    assert page.input_value("#text") == "the student" + expected
    assert page.input_value("#control-max_tokens") == "12"


def test_a_token_tells_what_it_was_drawn_from(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/playground?text=the&model=words&top_k=3&temperature=0.5&seed=1")
    page.fill("#control-max_tokens", "4")
    page.click("#go")
    page.wait_for_selector("#again:enabled")
    page.hover("#output .token >> nth=0")
    page.wait_for_selector("#tip th >> text=drawn from")
    asked = {"model": "words", "prompt": "the", "k": 8, "top_k": 3, "temperature": 0.5}
    _, answer = call(live, "/v1/next", asked)
    rows = [row.split("\t") for row in page.locator("#tip tr.alternative").all_inner_texts()]
    assert [row[0].strip() for row in rows] == [token["token"] for token in answer["tokens"]]
    for row, token in zip(rows, answer["tokens"], strict=True):
        assert float(row[2].rstrip(" %")) == pytest.approx(100 * token["probability"], rel=0.02)
        drawn = 0.0 if row[3] == "–" else float(row[3].rstrip(" %"))
        assert drawn == pytest.approx(100 * token["drawn"], rel=0.02)
    assert [row[3] for row in rows].count("–") == 5
    assert page.locator("#tip tr.chosen").count() == 1
    assert "3 tokens could be drawn" in page.inner_text("#tip")


STOP_AT_THE_FIRST_TOKEN = """() => {
  const observer = new MutationObserver(() => {
    if (!document.querySelector("#output .token")) return;
    observer.disconnect();
    document.querySelector("#stop").click();
  });
  observer.observe(document.querySelector("#output"), { childList: true, subtree: true });
}"""


def test_playground_stops_and_tells_errors(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/playground?model=chars&text=the&max_tokens=8000")
    page.wait_for_selector("#output", state="attached")
    # Stop in the page itself: on a busy machine the text may end before a click from here arrives.
    page.evaluate(STOP_AT_THE_FIRST_TOKEN)
    page.click("#go")
    page.wait_for_selector("#again:enabled")
    assert "stopped" in page.inner_text("#status")
    page.fill("#control-max_tokens", "99999999")
    page.click("#go")
    page.wait_for_selector(".error")
    assert page.inner_text(".error") == "max_tokens is too large: 99,999,999 (limit 8,192)."
    # The browser itself reports the status of the answer.
    page.complaints[:] = [text for text in page.complaints if "400" not in text]


def test_next_words_and_going_on(live: Live, page: Any) -> None:
    names = ["chars", "words", "ngram", "mixed"]
    page.goto(f"{live.address}/#/next?text=the&models={','.join(names)}&k=5")
    page.wait_for_selector(".result >> nth=3")
    probabilities = []
    for name in names:
        expected = live.served[name].handle.next("the", k=5)
        card = page.locator(".result", has=page.locator("h2", has_text=name))
        shown = card.locator(".word").all_inner_texts()
        assert [word.replace("␣", " ") for word in shown] == [token for token, _ in expected]
        probabilities += [probability for _, probability in expected]
    # One scale for all models: bars are as long as their words are likely.
    widths = page.locator(".fill.own").evaluate_all(
        "all => all.map(e => parseFloat(e.style.width))"
    )
    most = max(probabilities)
    assert widths == pytest.approx([100 * p / most for p in probabilities], abs=0.02)
    card = page.locator(".result", has=page.locator("h2", has_text="words"))
    card.locator("button >> nth=0").click()
    page.wait_for_function("document.querySelector('#text').value !== 'the'")
    expected = live.served["words"].handle.next("the", k=5)
    assert page.input_value("#text").split() == ["the", expected[0][0]]
    page.click("#back")
    assert page.input_value("#text") == "the"
    page.locator("label.chip", has_text="other").click()
    page.wait_for_selector(".result >> nth=4")
    assert "other" in page.url


def test_sliders_cut_the_bars(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/next?text=the&models=words&k=6")
    page.wait_for_selector(".result")
    assert page.locator(".cut").count() == 0
    page.fill("#control-top_k", "2")
    page.wait_for_selector(".cut")
    assert page.locator(".bars li").evaluate_all("all => all.map(e => e.className)") == [
        *("", ""),
        *["cut"] * 4,
    ]
    page.fill("#control-temperature", "0")
    page.wait_for_function("document.querySelectorAll('.cut').length === 5")
    assert page.locator(".bars .value").first.inner_text() == "100.0 %"
    assert "1 token can be drawn" in page.inner_text(".result")


def test_surprisal_of_two_models(live: Live, page: Any) -> None:
    page.goto(
        f"{live.address}/#/surprisal?text=the+student+opened%0Aher+book&model=words&other=other"
    )
    rows = live.served["words"].handle.surprisal("the student opened\nher book", unit="word")
    page.wait_for_selector(".result >> nth=2")
    first = page.locator(".result >> nth=0")
    assert first.locator(".token").count() == len(rows)
    first.locator(".token >> nth=1").hover()
    assert f"{rows[1].surprisal:.2f} bits" in page.inner_text("#tip")
    page.locator(".result >> nth=2").locator(".token >> nth=1").hover()
    assert "difference" in page.inner_text("#tip")
    # Totals by line, and numbers under words.
    totals = first.locator(".line-total").all_inner_texts()
    by_line = [sum(row.surprisal for row in rows if row.line == line) for line in (1, 2)]
    assert totals == [f"Σ {total:.1f}" for total in by_line]
    page.check("#numbers")
    page.wait_for_selector(".numbered")
    numbers = page.locator(".result >> nth=0").locator(".numbered small").all_inner_texts()
    assert numbers == [f"{row.surprisal:.1f}" for row in rows]
    with page.expect_download() as caught:
        page.click("#tsv")
    table = Path(caught.value.path()).read_text(encoding="utf-8").splitlines()
    assert table[0].split("\t")[:5] == ["model", "line", "index", "text", "surprisal"]
    found = [line.split("\t") for line in table[1 : 1 + len(rows)]]
    assert [float(line[4]) for line in found] == pytest.approx([row.surprisal for row in rows])


def test_surprisal_as_a_chart(live: Live, page: Any) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    page.goto(f"{live.address}/#/surprisal?text=the+student+opened&model=words")
    page.wait_for_selector(".bar-chart .bar")
    rows = live.served["words"].handle.surprisal("the student opened", unit="word")
    assert page.locator(".bar-chart rect.bar").count() == len(rows)
    page.focus(".bar-chart")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert f"{rows[1].surprisal:.2f} bits" in page.inner_text("#tip")
    with page.expect_download() as caught:
        page.click("#svg")
    text = Path(caught.value.path()).read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert "student" in text
    assert "var(" not in text
    with page.expect_download() as caught:
        page.click("#png")
    picture = image.open(io.BytesIO(Path(caught.value.path()).read_bytes()))
    assert picture.format == "PNG"
    assert len(picture.convert("RGB").getcolors(1 << 24)) > 10


def test_unknown_words_are_hatched_and_told(live: Live, page: Any) -> None:
    text = "zzzq the blorg"
    page.goto(f"{live.address}/#/surprisal?text={text.replace(' ', '+')}&model=words")
    page.wait_for_selector(".unknown-banner")
    assert "2 of 3 words are unknown" in page.inner_text(".unknown-banner")
    hatched = page.locator(".result .token.unknown")
    assert hatched.all_inner_texts() == ["zzzq", "blorg"]
    assert "gradient" in hatched.first.evaluate("e => getComputedStyle(e).backgroundImage")
    rows = live.served["words"].handle.surprisal(text, unit="word")
    known = [row for row in rows if not row.unknown]
    totals = page.inner_text(".totals")
    assert f"{sum(row.surprisal for row in rows):.2f}" in totals
    assert f"{sum(row.surprisal for row in known):.2f}" in totals
    # A text that is known needs no warning.
    page.fill("#text", "the student")
    page.wait_for_function("!document.querySelector('.unknown-banner')")
    assert page.locator(".totals").count() == 0


@pytest.mark.parametrize("name", ["words", "translator"])
def test_a_search_as_a_tree(live: Live, page: Any, name: str) -> None:
    text = "the old student"
    page.goto(
        f"{live.address}/#/decoding?text={text.replace(' ', '+')}&model={name}"
        "&beam_size=3&max_tokens=6&samples=2"
    )
    settled(page, "Decoding")
    asked = {"model": name, "text": text, "beam_size": 3, "max_tokens": 6, "samples": 2, "seed": 1}
    status, answer = call(live, "/v1/tree", {**asked, "length_penalty": 0.6})
    assert status == 200
    nodes = len(answer["nodes"]) + sum(len(path["tokens"]) for path in answer["samples"])
    assert page.locator(".node").count() == nodes
    assert page.locator(".node.wins").count() == answer["nodes"][answer["best"][0]]["step"]
    # Beams grow and die step by step.
    page.locator("#step").fill("1")
    first = [node for node in answer["nodes"] if node["step"] == 1]
    assert page.locator(".node").count() == len(first) + 2
    assert page.locator(".node.dead").count() == 0
    assert page.inner_text("#story").startswith("Step 1: ")
    page.click("#play")
    page.wait_for_function("document.querySelector('#play').textContent === 'Play'")
    assert page.locator(".node").count() == nodes
    alive = page.locator(".node.dead").count()
    assert alive < nodes
    page.locator(".node").first.hover()
    assert "log P of the whole" in page.inner_text("#tip")
    written = page.locator("td.way").all_inner_texts()
    assert written.count("sampled") == 2
    assert written.count("beam search") == len(answer["best"])
