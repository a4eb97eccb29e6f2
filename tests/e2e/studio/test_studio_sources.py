"""Where in the training text a text comes from: the panel of the playground and of surprisal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Live, call, serving

from elman import api
from elman.testing import TOY_TEXT

LINE = TOY_TEXT.split("\n")[0]


@pytest.fixture(scope="module")
def indexed(
    elman: Any, model: Path, toy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    """A network, and a model that predicts from the index of its text."""
    out = tmp_path_factory.mktemp("sources") / "exact"
    options = ("--tokenizer", "word", "--order", 3, "--valid", toy)
    elman("train", "infinigram", toy, *options, "--out", out).ok()
    with serving({"chars": api.load(model), "exact": api.load(out)}) as live:
        yield live


def test_a_continuation_is_explained(indexed: Live, page: Any) -> None:
    asked = "model=exact&text=the+student&max_tokens=8&seed=3"
    page.goto(f"{indexed.address}/#/playground?{asked}")
    page.click("#sources summary")
    page.wait_for_selector("text=There is no text to explain yet.")
    page.click("#go")
    page.wait_for_selector("#longest")
    text = page.inner_text("#output").removeprefix("the student")
    body = {"model": "exact", "prompt": "the student", "text": text}
    _, found = call(indexed, "/v1/sources", body)
    tokens = [one for one in found["tokens"] if text[one["start"] : one["end"]].strip()]
    assert page.locator("#sourced .token").count() == len(tokens)
    assert "The model exact predicts from its training text" in page.inner_text("#sources")
    page.hover("#sourced .token >> nth=1")
    page.wait_for_selector("#tip .quote mark")
    shown = page.inner_text("#tip")
    assert f"({tokens[1]['length']} tokens)" in shown
    assert f"toy.txt, line {tokens[1]['line']}" in shown
    assert f"{100 * tokens[1]['share']:.1f} %" in shown
    # The panel stays open, and follows a new continuation.
    page.fill("#control-seed", "4")
    page.click("#go")
    page.wait_for_selector("#again:enabled")
    page.wait_for_function(
        "document.querySelector('#sourced').textContent === "
        "document.querySelector('#output').textContent"
    )


def test_other_models_share_stretches(indexed: Live, page: Any) -> None:
    page.goto(f"{indexed.address}/#/surprisal?model=chars&text={LINE.replace(' ', '+')}")
    page.click("#sources summary")
    page.wait_for_selector("#longest")
    assert "The model chars does not look this text up" in page.inner_text("#sources")
    assert LINE.split()[-2] in page.inner_text("#longest mark")
    page.locator("#sourced .token >> nth=0").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tip .quote")
    page.fill("#text", "zebras")
    page.wait_for_selector("text=Nothing of it stands in that text.")


def test_without_an_index_the_panel_says_how_to_make_one(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/playground?model=words&text=the")
    page.click("#sources summary")
    page.wait_for_selector("#sources >> text=elman index train.txt")
