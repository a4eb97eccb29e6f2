"""The tab of training runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Live


def report(step: int, **figures: Any) -> str:
    return json.dumps({"kind": "step", "step": step, **figures}) + "\n"


@pytest.fixture
def runs(words: Path) -> Iterator[Path]:
    """Three runs: one that goes on, one that is done, and a model of counts."""
    folder = words.parent
    made = []
    for name, config, lines in (
        (
            "going-on",
            {"model": {"kind": "recurrent", "cell": "lstm", "hidden_size": 8}},
            report(1, loss=5.0, perplexity=148.0) + report(2, loss=4.0, perplexity=54.0),
        ),
        (
            "ended",
            {"model": {"kind": "recurrent", "cell": "gru", "hidden_size": 8}},
            report(1, loss=6.0)
            + json.dumps({"kind": "valid", "step": 3, "valid_perplexity": 40.0})
            + '\n{"kind": "done", "step": 3}\n',
        ),
        (
            "counts",
            {"model": {"kind": "ngram", "order": 3}},
            '{"kind": "done", "summary": {"perplexity": 30.5}}\n',
        ),
    ):
        run = folder / name
        run.mkdir()
        (run / "config.json").write_text(json.dumps(config))
        (run / "metrics.jsonl").write_text(lines)
        made.append(run)
    yield folder
    for run in made:
        shutil.rmtree(run)


def test_the_speed_of_a_finished_run_is_that_of_the_whole(
    live: Live, page: Any, runs: Path
) -> None:
    done = {"kind": "done", "step": 3, "summary": {"tokens_per_second": 2500.0}}
    lines = report(3, loss=5.0, tokens_per_second=9000.0) + json.dumps(done) + "\n"
    (runs / "ended" / "metrics.jsonl").write_text(lines)
    page.goto(f"{live.address}/#/training?runs=ended")
    page.wait_for_selector("main >> text='ended: 3 updates, 2500 tokens a second'")


def test_numbers_of_the_axes_are_whole(live: Live, page: Any, runs: Path) -> None:
    """In presentation the letters are larger than the margin right of the last number allows."""
    with (runs / "going-on" / "metrics.jsonl").open("a") as file:
        file.write(report(400, loss=3.0))
    page.goto(f"{live.address}/#/training?runs=going-on,counts")
    page.wait_for_selector("svg.chart path")
    page.keyboard.press("Alt+p")
    page.wait_for_selector("svg.chart text >> text='400'")
    for chart in page.locator("svg.chart:visible").all():
        outside = chart.evaluate(
            """chart => [...chart.querySelectorAll("text")].map((text) =>
                text.getBoundingClientRect().right - chart.getBoundingClientRect().right)"""
        )
        assert max(outside) <= 0.5
    # A model of counts has no line on how far it is.
    assert "counts" not in page.inner_text('[role="status"]')


def test_curves_follow_a_run(live: Live, page: Any, runs: Path) -> None:
    page.goto(f"{live.address}/#/training?runs=going-on")
    page.wait_for_function("document.querySelectorAll('svg.chart path').length >= 2")
    assert "running" in page.inner_text("#run-table")
    before = page.locator("svg.chart path").first.get_attribute("d")
    with (runs / "going-on" / "metrics.jsonl").open("a") as file:
        file.write(report(3, loss=3.0, perplexity=20.0, sample="the student"))
    page.wait_for_function(
        "before => document.querySelector('svg.chart path').getAttribute('d') !== before",
        arg=before,
    )
    page.wait_for_selector(".sample")
    assert page.inner_text(".sample") == "the student"
    page.select_option("#control-along", "tokens")
    assert "along=tokens" in page.url


def test_the_pointer_tells_whose_step_a_value_is_of(live: Live, page: Any, runs: Path) -> None:
    """A curve without a report at this step shows its last one, and says of which step it is."""
    page.goto(f"{live.address}/#/training?runs=going-on,ended")
    page.wait_for_function("document.querySelectorAll('svg.chart path').length >= 2")
    page.locator("svg.chart").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    # By cells: the text of a row that is not laid out yet has nothing between them.
    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent).join(' '))"
    rows = [row.split() for row in page.locator("#tip tr").evaluate_all(cells)]
    assert page.locator("#tip b").inner_text() == "2 updates"
    assert sorted(rows) == [["ended", "6", "at", "1"], ["going-on", "4"]]


def test_runs_in_a_table(live: Live, page: Any, runs: Path) -> None:
    page.goto(f"{live.address}/#/training?runs=going-on,ended,counts")
    page.wait_for_selector("#run-table")
    table = page.locator("#run-table tr").all_inner_texts()
    assert table[0].split("\t")[:3] == ["run", "is", "best perplexity"]
    assert set(table[0].split("\t")[3:]) == {"kind", "cell", "order"}
    rows = {row.split("\t")[0].strip(): row.split("\t")[1:] for row in table[1:]}
    assert rows["going-on"][0] == "running now"
    assert rows["ended"][:2] == ["done", "40"]
    assert rows["counts"][:2] == ["done", "30.5"]
    # A model of counts is a line across the chart of perplexity.
    level = page.locator("section[aria-label=Perplexity] line.level")
    assert level.count() == 1
    assert "counts 30.5" in page.locator("section[aria-label=Perplexity] svg").text_content()


def test_smoothing_and_log_axes(live: Live, page: Any, runs: Path) -> None:
    page.goto(f"{live.address}/#/training?runs=going-on")
    page.wait_for_function("document.querySelectorAll('svg.chart path').length >= 2")
    loss = page.locator("section[aria-label=Loss] path")
    page.fill("#control-smoothing", "0.5")
    page.wait_for_function(
        "document.querySelectorAll('section[aria-label=Loss] path').length === 2"
    )
    # The curve itself stays, pale; the smoothed one has (0.5 * 5 * 0.5 + 0.5 * 4) / 0.75 = 4.33.
    assert loss.nth(0).get_attribute("opacity") == "0.25"
    page.locator("section[aria-label=Loss] svg").focus()
    page.keyboard.press("End")
    assert page.locator("#tip tr").inner_text().split() == ["going-on", "4.333"]
    page.fill("#control-smoothing", "0")
    page.wait_for_function(
        "document.querySelectorAll('section[aria-label=Loss] path').length === 1"
    )
    plain = loss.first.get_attribute("d")  # charts that come later make this one narrower
    page.select_option("#control-log", "both")
    assert loss.first.get_attribute("d") == plain  # of two points, both are at the ends
    assert "log=both" in page.url
