"""A server of everything that has a tab, and a browser page that must not complain."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Live, serving
from pages import SPECIMENS, TIMEOUT_MS

from elman import api


@pytest.fixture(scope="session")
def live(
    model: Path,
    words: Path,
    words_too: Path,
    toy: Path,
    elman: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Live]:
    """A server of everything that has a tab."""
    ngram = tmp_path_factory.mktemp("studio") / "ngram"
    tokenizer = ("--set", f"tokenizer.file={words / 'tokenizer.json'}")
    elman("train", "ngram", toy, "--out", ngram, *tokenizer).ok()
    models = {
        "chars": api.load(model),
        "words": api.load(words),
        "other": api.load(words_too),
        "ngram": api.load(ngram),
        "mixed": api.load(f"0.5*{words}+0.5*{ngram}"),
        "tagger": api.load(SPECIMENS / "format-1-tagger"),
        "classifier": api.load(SPECIMENS / "format-1-classifier"),
        "translator": api.load(SPECIMENS / "format-1-translator"),
        "surnames": api.load(SPECIMENS / "format-1-conditional"),
    }
    with serving(models, runs=words.parent, lab=True) as live:
        yield live


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the session: its event loop would be in the way of other tests' servers."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not on this machine (Debian: chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
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
