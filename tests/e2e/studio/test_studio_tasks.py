"""The tabs of single tasks, and models that take a label."""

from __future__ import annotations

from typing import Any

import pytest
from live import Live, serving

from elman.tasks import task_named


def test_a_translation_and_where_it_looked(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/translate?text=the+old+student")
    page.wait_for_selector("canvas")
    handle = live.served["translator"].handle
    alignment = handle.align("the old student")
    assert page.inner_text(".prose") == handle.translate("the old student").strip()
    page.focus("canvas")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".readout").startswith(f"{alignment.target[0]} ← {alignment.source[0]}:")
    page.fill("#text", "")
    page.wait_for_selector("text=Write a text above.")


def test_tags_with_probabilities(live: Live, page: Any) -> None:
    text = "the student opened her book"
    page.goto(f"{live.address}/#/tag?text={text.replace(' ', '+')}")
    page.wait_for_selector(".tag-word")
    words = [one.split("\n")[:2] for one in page.locator(".tag-word").all_inner_texts()]
    handle = live.served["tagger"].handle
    assert [tuple(word) for word in words] == handle.tag(text)
    probabilities = handle.probabilities(text)
    page.hover(".tag-word >> nth=1")
    shown = page.locator("#tip .word").all_inner_texts()
    assert shown == sorted(probabilities[1], key=lambda label: -probabilities[1][label])[:6]
    sure = page.locator(".sure i >> nth=1").evaluate("e => parseFloat(e.style.width)")
    assert sure == pytest.approx(100 * max(probabilities[1].values()), abs=0.51)


def test_classes_and_the_words_that_mattered(live: Live, page: Any) -> None:
    text = "the pupil found her laptop"
    page.goto(f"{live.address}/#/classify?text={text.replace(' ', '+')}")
    page.wait_for_selector("#reasons")
    handle = live.served["classifier"].handle
    found = handle.classify(text)
    ranked = sorted(found.probabilities, key=lambda label: -found.probabilities[label])
    assert page.locator(".bars .word").all_inner_texts() == ranked
    assert page.locator(".prose").first.inner_text() == found.label
    effects = handle.word_effects(text)
    words = page.locator("#reasons .token")
    assert words.all_inner_texts() == text.split()
    strongest = max(range(len(effects)), key=lambda i: abs(effects[i].effect))
    words.nth(strongest).hover()
    assert f"{abs(effects[strongest].effect):.2f} bits" in page.inner_text("#tip")


def test_a_label_is_chosen(live: Live, page: Any) -> None:
    page.goto(f"{live.address}/#/playground?model=surnames&max_tokens=5&seed=2&text=A")
    page.wait_for_selector("#control-label")
    handle = live.served["surnames"].handle
    assert page.locator("#control-label option").all_inner_texts() == list(handle.labels)
    for label in handle.labels:
        page.select_option("#control-label", label)
        page.click("#go")
        page.wait_for_selector("#again:enabled")
        expected = handle.given(label).generate("A", max_tokens=5, temperature=0.8, seed=2)
        assert page.inner_text("#output").strip() == f"A{expected}".strip()
    assert f"label={label}" in page.url
    page.click("#tabs >> text=Surprisal")
    page.wait_for_selector(".result")
    assert page.input_value("#control-label") == label
    total = sum(row.surprisal for row in handle.given(label).surprisal("A", unit="word"))
    assert f"{total:.2f}" in page.inner_text(".figures")
    page.select_option("#control-model", "words")
    assert page.locator("#control-label").is_hidden()


class Entities:
    """A tagger that finds one entity of two words."""

    kind = "entities"
    task = task_named("tagger")

    def tag(self, text: str) -> list[tuple[str, str]]:
        tags = ["O", "B-PER", "I-PER", "B-PER"]
        return list(zip(text.split(), tags, strict=True))

    def probabilities(self, text: str) -> list[dict[str, float]]:
        return [{"PER": 0.75, "O": 0.25}] * len(text.split())


def test_words_of_one_entity_are_one_span(page: Any) -> None:
    with serving({"entities": Entities()}) as live:
        page.goto(f"{live.address}/#/tag?text=Did+Jeff+Elman+Ada")
        page.wait_for_selector(".tag-word")
        shown = [text.split("\n")[:2] for text in page.locator(".tag-word").all_inner_texts()]
        assert shown == [["Did"], ["Jeff Elman", "PER"], ["Ada", "PER"]]
