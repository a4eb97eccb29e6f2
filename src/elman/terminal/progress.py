"""Show the progress of a training run on stderr: a live line on a terminal, else periodic lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elman.terminal.console import duration, figure, spoken, talk, without_controls

if TYPE_CHECKING:
    from elman.train.report import Report

SECONDS_BETWEEN_LINES = 10.0
"""Interval of lines if stderr is not a terminal."""
SECONDS_BETWEEN_VALIDATIONS, RUN_BETWEEN_VALIDATIONS = 5.0, 0.05
"""A validation is shown so long, or such a share of the run, after the one that was shown before;
the last one is shown at the end."""
SECONDS_BETWEEN_SAMPLES = 20.0
"""Interval of samples; the last one is shown at the end."""
SECONDS_BETWEEN_BARS = 0.3
"""Interval of updates in a notebook."""


class Progress:
    """Show the reports of a run; a context manager."""

    def __init__(self) -> None:
        self._display = display()
        self._valid = ""
        self._validated: tuple[float, float] | None = None
        """The time and the progress of the validation that was shown last."""
        self._held: Report | None = None
        """The last validation, if it was not shown."""
        self._held_best: Report | None = None
        """The best one, likewise: it is shown before a later one that is not the best."""
        self._sampled: float | None = None
        """When a sample was last shown."""
        self._unseen: Report | None = None
        """The last sample, if it was not shown."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._display.close()

    def notes(self, notes: Iterable[str]) -> None:
        for note in notes:
            self._display.say(f"· {note}")

    def show(self, report: Report) -> None:
        if report.kind == "step":
            line = " · ".join(filter(None, (step_line(report), self._valid)))
            self._display.update(line, report.progress)
        elif report.kind == "valid":
            self._valid = f"valid {_figures(report)[0].rpartition(' ')[2]}"
            self._validation(report)
        elif report.kind in ("done", "stopped"):
            if self._held is not None:
                self._say_valid(self._held)
                self._held = None
            if report.kind == "done" and self._unseen is not None:
                self._display.say(f"text by the model after step {self._unseen.step:,}:")
                self._display.say(_indented(self._unseen.sample or ""))
        self.notes(filter(None, [report.note]))

    def _validation(self, report: Report) -> None:
        now, done = time.monotonic(), report.progress or 0.0
        if self._validated is not None and report.note is None:
            then, done_then = self._validated
            share = round(done - done_then, 9)
            if now - then < SECONDS_BETWEEN_VALIDATIONS and share < RUN_BETWEEN_VALIDATIONS:
                self._held = report
                self._held_best = report if report.best else self._held_best
                self._unseen = report if report.sample else self._unseen
                return
        self._validated, self._held = (now, done), None
        self._say_valid(report)
        if report.sample:
            self._sample(report, report.sample, now)

    def _say_valid(self, report: Report) -> None:
        if self._held_best is not None and not report.best:
            self._display.say(valid_line(self._held_best))
        self._held_best = None
        self._display.say(valid_line(report))

    def _sample(self, report: Report, sample: str, now: float) -> None:
        if self._sampled is not None and now - self._sampled < SECONDS_BETWEEN_SAMPLES:
            self._unseen = report
            return
        self._sampled, self._unseen = now, None
        self._display.say(_indented(sample))


def display() -> Display:
    """What suits stderr, or the notebook."""
    # A kernel of Jupyter has loaded IPython, which has no shell of this kind elsewhere.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ == "ZMQInteractiveShell":
        return NotebookDisplay()
    return TerminalDisplay() if sys.stderr.isatty() else PlainDisplay()


def step_line(report: Report) -> str:
    parts = {
        "step {:,}": report.step,
        "loss {:.3f}": report.loss,
        "perplexity {:.4g}": report.perplexity,
        "gradient {:.2g}": report.gradient_norm,
        "clipped {:.0%}": report.clip_rate or None,
        "{:,.0f} tokens/s": report.tokens_per_second,
        "{} left": None if report.seconds_left is None else duration(report.seconds_left),
    }
    return " · ".join(form.format(value) for form, value in parts.items() if value is not None)


def valid_line(report: Report) -> str:
    parts = _figures(report) + ["the best so far"] * bool(report.best)
    return f"validation after step {report.step:,}: {', '.join(parts)}"


def _figures(report: Report) -> list[str]:
    """List the figures of a validation; the first is the one that selects the model."""
    metrics = report.valid_metrics or {}
    parts = [f"{spoken(name)} {figure(name, value)}" for name, value in metrics.items()]
    if report.valid_perplexity is not None:
        parts.append(f"perplexity {report.valid_perplexity:.4g}")
    if report.valid_bits_per_byte is not None:
        parts.append(f"{report.valid_bits_per_byte:.3f} bits per byte")
    return parts


def _indented(sample: str) -> str:
    return "\n".join(f"  | {line}" for line in sample.strip("\n").splitlines())


class PlainDisplay:
    """Whole lines, for logs and pipes: `update` shows a line now and then, `say` always."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def update(self, line: str, progress: float | None) -> None:
        if time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self.say(line if progress is None else f"{progress:4.0%} {line}")

    def say(self, text: str) -> None:
        talk(text)
        self._said = time.monotonic()

    def close(self) -> None:
        pass


class TerminalDisplay:
    """A live line, which `update` overwrites, below the lines of `say`."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._progress = RichProgress(
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=1.0)
        self._progress.start()

    def update(self, line: str, progress: float | None) -> None:
        description = without_controls(line)
        self._progress.update(self._task, description=description, completed=progress or 0.0)

    def say(self, text: str) -> None:
        shown = without_controls(text)
        self._progress.console.print(shown, markup=False, emoji=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


class NotebookDisplay:
    """A bar and the last line in the output of a cell; lines of `say` go to stderr."""

    def __init__(self) -> None:
        notebook: Any = import_module("IPython.display")
        self._html = notebook.HTML
        self._handle = notebook.display(self._html(self._bar("starting", 0.0)), display_id=True)
        self._shown = time.monotonic()

    @staticmethod
    def _bar(line: str, progress: float) -> str:
        return f'<progress value="{progress:.3f}" max="1"></progress> {escape(line)}'

    def update(self, line: str, progress: float | None) -> None:
        if time.monotonic() - self._shown >= SECONDS_BETWEEN_BARS:
            self._shown = time.monotonic()
            self._handle.update(self._html(self._bar(without_controls(line), progress or 0.0)))

    def say(self, text: str) -> None:
        talk(text)

    def close(self) -> None:
        self._handle.update(self._html(self._bar("", 1.0)))


Display = TerminalDisplay | PlainDisplay | NotebookDisplay
