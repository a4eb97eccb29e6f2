"""The tab of the lab."""

from __future__ import annotations

from typing import Any

from live import Live


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
    # The figures can be read by keys.
    page.locator("svg.chart").first.focus()
    page.keyboard.press("ArrowRight")
    first = page.inner_text("#tip")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip") != first
    assert page.locator("#tip tr").count() >= 1
    # Turn the knob: it asks for the prediction anew. Then compare.
    page.select_option("#control-knob", "5")
    assert page.is_disabled("#run")
    assert page.locator("input[name=bet]:checked").count() == 0
    page.check('input[value="holds"]')
    page.click("#run")
    page.wait_for_function("document.querySelector('#run').textContent === 'Run it again'")
    assert "does not hold here You predicted: holds." in page.inner_text("#verdict")
    assert page.locator("text=Results by knob value").is_visible()
    page.click("details:not(#code) summary")
    assert "def step" in page.inner_text("pre.code >> nth=0")
