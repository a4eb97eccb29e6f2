"""The tab that looks inside a recurrent model."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from live import Live, call
from pages import TIMEOUT_MS, settled

TEXT = "the student opened her book and the student lost her book"


def open_tab(live: Live, page: Any, **params: object) -> None:
    rest = "".join(f"&{name}={value}" for name, value in params.items())
    page.goto(f"{live.address}/#/inside?text={TEXT.replace(' ', '+')}{rest}")
    settled(page, "Inside")


def test_units_and_gradients(live: Live, page: Any) -> None:
    open_tab(live, page, model="words")
    # Layers are numbered from 0, as in the command, Python and HTTP.
    assert "layer 0" in page.inner_text("section[aria-label='Units over the text'] h2")
    assert page.locator("#control-layer option").all_inner_texts() == ["0, the only one"]
    page.focus("canvas")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".readout").startswith("unit ")
    page.select_option("#control-part", "f")
    page.wait_for_function("document.querySelector('main').textContent.includes('forget gate')")
    listening = page.locator("section[aria-label='Gradients of the prediction'] .token")
    assert listening.count() == 12
    listening.nth(3).click()
    page.wait_for_selector(
        "section[aria-label^='Gradients'] .token:nth-child(4)[aria-pressed=true]"
    )
    assert "target=3" in page.url


def test_a_unit_colours_the_text(live: Live, page: Any) -> None:
    open_tab(live, page, model="words")
    page.focus("canvas")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    unit = int(re.findall(r"unit (\d+)", page.inner_text(".readout"))[0])
    page.wait_for_function("unit => document.querySelector('#unit')?.value === `${unit}`", arg=unit)
    _, found = call(live, "/v1/inside/unit", {"model": "words", "text": TEXT, "unit": unit})
    shades = page.locator(".unit-text .token").evaluate_all(
        "all => all.map(e => getComputedStyle(e).backgroundColor)"
    )
    values = found["steps"]["h"]
    most = max(map(abs, values))
    alphas = [float((*shade.rstrip(")").split(","), "1")[3]) for shade in shades]
    assert alphas == pytest.approx([0.8 * abs(value) / most for value in values], abs=0.01)
    # Warm and cool tell the sign.
    signs = {(value > 0, shade.split(",")[0]) for value, shade in zip(values, shades, strict=True)}
    assert len(signs) == len({sign for sign, _ in signs})


def test_a_span_finds_units_and_places_alike(live: Live, page: Any) -> None:
    open_tab(live, page, model="words")
    tokens = page.locator(".unit-text .token")
    tokens.nth(4).click()
    tokens.nth(5).click(modifiers=["Shift"])
    page.wait_for_selector(".alike h3")
    page.locator("#threshold").fill("0.05")
    page.wait_for_selector("#alike-units .chip")
    asked = {"model": "words", "text": TEXT, "first": 4, "last": 5, "threshold": 0.05}
    _, found = call(live, "/v1/inside/alike", asked)
    shown = page.locator("#alike-units .chip").all_inner_texts()
    assert [int(text.split()[1]) for text in shown] == [unit["unit"] for unit in found["units"]]
    assert page.locator(".token.selected").count() == 2
    places = sum(place["last"] - place["first"] + 1 for place in found["places"])
    assert page.locator(".token.alike-place").count() == places
    assert page.locator("#alike-places li").count() == len(found["places"])
    page.locator("#alike-units .chip >> nth=0").click()
    unit = found["units"][0]["unit"]
    page.wait_for_function("unit => document.querySelector('#unit').value === `${unit}`", arg=unit)


@pytest.mark.parametrize("name", ["words", "other"])
def test_a_cell_computes_with_real_numbers(live: Live, page: Any, name: str) -> None:
    """Of an lstm and of a gru, step by step: the drawing has the numbers of the equations."""
    open_tab(live, page, model=name, unit=2, at=3)
    _, found = call(live, "/v1/inside/unit", {"model": name, "text": TEXT, "unit": 2})
    steps = found["steps"]
    for t in (3, 4):
        assert f"({t} of 11)" in page.inner_text("#cell-token")
        told = page.inner_text(".equations").replace("−", "-")
        if name == "words":
            c = steps["f"][t] * steps["c"][t - 1] + steps["i"][t] * steps["g"][t]
            assert c == pytest.approx(steps["c"][t], abs=1e-3)
            assert steps["h"][t] == pytest.approx(steps["o"][t] * math.tanh(c), abs=1e-3)
            assert f"f = {steps['f'][t]:.2f}" in told
        else:
            h = (1 - steps["u"][t]) * steps["h"][t - 1] + steps["u"][t] * steps["n"][t]
            assert h == pytest.approx(steps["h"][t], abs=1e-3)
            assert f"u = {steps['u'][t]:.2f}" in told
        assert f"= {steps['h'][t]:.2f}" in told
        page.click("#on-one")
    assert "at=5" in page.url


@pytest.mark.parametrize("width", [320, 390, 600])
@pytest.mark.parametrize("name", ["words", "other"])
def test_a_cell_fits_on_a_phone(live: Live, browser: Any, name: str, width: int) -> None:
    """Without scrolling, in letters of the usual size, with the numbers of the wide drawing."""
    context = browser.new_context(viewport={"width": width, "height": 844}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    open_tab(live, page, model=name, unit=2, at=3)
    drawing = page.locator("svg.cell:visible")
    assert drawing.count() == 1
    places = drawing.evaluate(
        """drawing => {
            const box = (element) => {
                const { left, top, right, bottom } = element.getBoundingClientRect();
                return [left, top, right, bottom];
            };
            const texts = [...drawing.querySelectorAll("text")];
            return {
                texts: texts.map((element) => [element.textContent, ...box(element)]),
                room: box(drawing.parentElement),
                scale: drawing.getScreenCTM().a,
            };
        }"""
    )
    left, top, right, bottom = places["room"]
    assert right <= width
    assert places["scale"] == 1
    for text, x, y, end_x, end_y in places["texts"]:
        assert left <= x < end_x <= right, text
        assert top <= y < end_y <= bottom, text
    boxes = [place[1:] for place in places["texts"]]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 3 or b[3] <= a[1] + 3
            assert apart, "two texts overlap"
    amounts = [
        sorted(page.locator(f"svg.cell >> nth={number} >> .amount").all_text_contents())
        for number in range(2)
    ]
    assert amounts[0] == amounts[1]
    context.close()


@pytest.mark.parametrize("width", [1024, 1280, 1920])
def test_presentation_fits_the_projector(live: Live, browser: Any, width: int) -> None:
    """The enlarged drawing of the cell and the heat map need no scrolling."""
    context = browser.new_context(viewport={"width": width, "height": 768}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    open_tab(live, page, model="words", unit=2, at=3)
    page.keyboard.press("Alt+p")
    page.wait_for_function("document.documentElement.hasAttribute('data-present')")
    assert page.locator("svg.cell:visible").count() == 1
    for place in (".cell-place", ".scroll:has(canvas)"):
        hidden = page.locator(place).evaluate("e => e.scrollWidth - e.clientWidth")
        assert hidden <= 0, place
    context.close()


def test_characters_stand_upright(live: Live, page: Any) -> None:
    """Labels of single characters are not turned: the map begins close below them."""
    open_tab(live, page, model="chars")
    height = page.locator("canvas").evaluate("e => e.clientHeight")
    rows = 32
    assert height < 60 + 18 * rows
    page.select_option("#control-model", "words")
    page.wait_for_function(
        "before => document.querySelector('canvas').clientHeight > before", arg=height
    )
