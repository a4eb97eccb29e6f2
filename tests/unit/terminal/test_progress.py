from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from elman.terminal import progress
from elman.train.report import Report

STEP = Report(
    kind="step",
    step=1200,
    loss=4.5,
    perplexity=90.0,
    gradient_norm=0.312,
    clip_rate=0.25,
    tokens_per_second=8123.4,
    seconds_left=245.0,
    progress=0.5,
)
VALID = Report(
    kind="valid",
    step=1200,
    valid_loss=4.4,
    valid_perplexity=81.45,
    valid_bits_per_byte=1.234,
    best=True,
    sample="once\nupon",
    note="a sentence",
)


def test_a_step_has_every_figure() -> None:
    assert progress.step_line(STEP) == (
        "step 1,200 · loss 4.500 · perplexity 90 · gradient 0.31 · clipped 25% · 8,123 tokens/s"
        " · 4 min 05 s left"
    )


def test_figures_that_are_not_there_are_left_out() -> None:
    assert progress.step_line(Report(kind="step", step=3)) == "step 3"


def test_away_from_a_terminal_lines_are_few_and_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    with progress.Progress() as shown:
        for report in (STEP, VALID, STEP, STEP):
            shown.show(report)
            now[0] += 6.0
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip("\n").split("\n")
    assert lines[:4] == [
        "validation after step 1,200: perplexity 81.45, 1.234 bits per byte, the best so far",
        "  | once",
        "  | upon",
        "· a sentence",
    ]
    # Of the steps after it only the second is ten seconds later.
    assert len(lines) == 5
    assert lines[4].startswith(" 50% step 1,200")
    assert lines[4].endswith("valid 81.45")


def test_samples_are_shown_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.Progress() as shown:
        for number in range(6):  # one every eight seconds
            shown.show(replace(VALID, step=number, sample=f"sample {number}", note=None))
            now[0] += 8.0
        shown.show(Report(kind="done", step=6))
    lines = capsys.readouterr().err.strip("\n").split("\n")
    assert [line for line in lines if "validation" not in line] == [
        "  | sample 0",
        "  | sample 3",
        "text by the model after step 5:",
        "  | sample 5",
    ]
    assert len(lines) == 10


def test_of_quick_validations_one_in_twenty_parts_of_the_run_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def validation(number: int) -> Report:
        return replace(VALID, step=number, progress=number / 100, sample=None, note=None)

    with progress.Progress() as shown:
        for number in range(1, 98):
            note = "a sentence" if number == 50 else None
            shown.show(replace(validation(number), note=note))
        shown.show(Report(kind="done", step=97))
    steps = [int(line.split()[3].rstrip(":")) for line in _lines(capsys) if "validation" in line]
    assert steps == [*range(1, 50, 5), 50, *range(55, 97, 5), 97]


def test_the_last_validation_is_shown_once_and_before_its_sample(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.Progress() as shown:
        for number in (1, 2, 3):
            shown.show(replace(VALID, step=number, progress=number / 100, note=None))
        shown.show(Report(kind="stopped", step=3, note="stopped"))
        shown.show(Report(kind="done", step=3))
    assert [line.split(":")[0] for line in _lines(capsys)] == [
        *("validation after step 1", "  | once", "  | upon"),
        *("validation after step 3", "· stopped", "text by the model after step 3"),
        *("  | once", "  | upon"),
    ]


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.strip("\n").split("\n")


def test_a_notebook_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    shell = type("ZMQInteractiveShell", (), {})()
    shown_by = SimpleNamespace(HTML=str, display=lambda html, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", shown_by)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_BARS", 0.0)
    with progress.Progress() as bar:
        bar.show(STEP)
        bar.show(VALID)
    assert shown[0].startswith('<progress value="0.500" max="1"></progress> step 1,200')
    assert "validation after step 1,200" in capsys.readouterr().err


def test_the_best_validation_is_shown_before_a_later_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    plain = replace(VALID, sample=None, note=None)
    with progress.Progress() as shown:
        for step, best in ((1, True), (2, True), (3, False), (9, False), (10, False)):
            now[0] = float(step)
            shown.show(replace(plain, step=step, best=best, progress=step / 1000))
        shown.show(Report(kind="done", step=10))
    lines = capsys.readouterr().err.strip("\n").split("\n")
    assert [line.partition(":")[0].rpartition(" ")[2] for line in lines] == ["1", "2", "9", "10"]
    assert ["best" in line for line in lines] == [True, True, False, False]
