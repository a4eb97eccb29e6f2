"""What the tests of the studio ask of a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TIMEOUT_MS = 120_000
"""Only reached where something is broken: the machine may be busy."""
SPECIMENS = Path(__file__).resolve().parents[2] / "unit" / "runs" / "specimens"

TABS = {
    "Playground": "playground?text=the&model=words&max_tokens=7&temperature=0.5&stop=x&seed=3",
    "Next word": "next?text=the+student&models=words%2Cngram&k=3&top_k=2",
    "Surprisal": "surprisal?text=the+book&model=words&other=ngram&unit=token&numbers=1",
    "Decoding": "decoding?text=the+student&model=words&beam_size=2&max_tokens=4",
    "Inside": "inside?text=the+student+opened&model=words&part=f&units=16&target=2&unit=5&at=1",
    "Translate": "translate?text=the+old+student&model=translator",
    "Tag": "tag?text=the+student+opened+her+book&model=tagger",
    "Classify": "classify?text=good+book&model=classifier",
    "Models": "models",
    "Training": "training?runs=words&along=minutes&smoothing=0.5",
    "Lab": "lab?claim=C3&knob=5&seeds=3",
}
"""Every tab, with a link that says what is to be seen in it."""


def wait_for_tab(page: Any, title: str) -> None:
    has_title = "title => document.querySelector('h1')?.textContent === title"
    page.wait_for_function(has_title, arg=title)


def settled(page: Any, title: str) -> None:
    """Wait until a tab has got all its answers."""
    wait_for_tab(page, title)
    ready = {
        "Next word": ".result",
        "Surprisal": ".result",
        "Decoding": ".node",
        "Inside": ".cell .gauge:visible",
        "Training": "#run-table",
        "Translate": "canvas",
        "Tag": ".tag-word",
        "Classify": "#reasons",
        "Lab": "#run",
    }
    page.wait_for_selector(ready.get(title, "h1"))


def shown(page: Any, title: str) -> dict[str, Any]:
    """What a tab shows once everything has arrived."""
    settled(page, title)
    values = page.evaluate(
        "[...document.querySelectorAll('main input, main select, main textarea')]"
        ".map(e => [e.id, e.type === 'checkbox' ? e.checked : e.value])"
    )
    return {"text": page.inner_text("main"), "controls": values}


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
