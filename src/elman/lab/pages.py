"""Pages about experiments, from their declarations and results: Markdown, HTML, notebook."""

from __future__ import annotations

import base64
import html
import inspect
import json
import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from elman.base.files import write_text
from elman.lab import results
from elman.lab.experiment import Experiment
from elman.lab.figures import draw, picture
from elman.lab.results import Result
from elman.lab.verdicts import Finding
from elman.terminal.console import duration

WRITTEN = "<!-- Written by `elman lab run`: change the experiment, then run it again. -->"


def write_page(experiment: Experiment, folder: Path) -> None:
    """Write figures and page of all results in `folder`, the folder of a claim."""
    found = [results.read_result(folder), *_others(folder)]
    for result, place in zip(found, (folder, *_places(folder)), strict=True):
        drawn = experiment.figure(result.rows)
        draw(drawn, place / "figure.svg")
        draw(drawn, place / "figure-dark.svg", "dark")
        draw(drawn, place / "figure.png")
    write_text(folder / results.PAGE_FILE, markdown(experiment, folder, found))


def _places(folder: Path) -> list[Path]:
    """The folders of further results of a claim: other knob values and sizes."""
    return sorted(path.parent for path in folder.glob(f"*/**/{results.RESULT_FILE}"))


def _others(folder: Path) -> list[Result]:
    return [results.read_result(place) for place in _places(folder)]


def markdown(experiment: Experiment, folder: Path, found: Sequence[Result]) -> str:
    """The page of a claim."""
    first, *others = found
    knob = experiment.knob
    lines = [
        WRITTEN,
        "",
        f"# {experiment.id}: {experiment.title}",
        "",
        f"> {experiment.claim}",
        "",
        f"Lectures: {'; '.join(experiment.sources)}.",
        "",
        f"**Verdict here: {first.verdict}.**",
        "",
        *_table(first.findings),
        "",
        "An effect is the mean over seeds with its 95 % interval. The claim holds if the whole "
        "interval keeps the rule, and does not hold here if the whole interval breaks it.",
        "",
        _image(experiment, ""),
        "",
        experiment.figure(first.rows).caption,
        "",
        "## Design",
        "",
        experiment.design,
        "",
        "## What breaks it",
        "",
        experiment.breaks,
        "",
        f"    elman lab run {experiment.id} --knob {knob.broken}",
        "",
        f"The knob is the {knob.name}: {knob.meaning}. Its default is {knob.default}; "
        f"{', '.join(map(str, knob.values))} are offered in the studio.",
    ]
    for result, place in zip(others, _places(folder), strict=True):
        name = place.relative_to(folder).as_posix()
        titles = ["At the larger size"] if result.size == "large" else []
        titles += [f"With {knob.name} {result.knob}"] if result.knob != knob.default else []
        lines += ["", f"### {', '.join(titles)}: {result.verdict}", "", *_table(result.findings)]
        lines += ["", _image(experiment, f"{name}/"), "", _ran(result)]
    if experiment.limits:
        lines += ["", "## What it does not say", "", experiment.limits]
    lines += ["", "## The arithmetic", ""]
    lines += [f"- {source_link(place)}" for place in experiment.equations]
    lines += ["", "## Further reading", ""]
    lines += [f"- {each}" for each in experiment.reading]
    lines += ["", "## Run it", "", f"    elman lab run {experiment.id}", "", _ran(first), ""]
    return "\n".join(lines)


def _image(experiment: Experiment, place: str) -> str:
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{place}figure-dark.svg">'
        f'<img alt="{html.escape(experiment.title)}" src="{place}figure.svg"></picture>'
    )


def _ran(result: Result) -> str:
    seeds = ", ".join(map(str, result.seeds))
    return f"Seeds {seeds}; {duration(result.seconds)} on {result.machine}."


def _table(findings: Iterable[Finding]) -> list[str]:
    rows = [
        "| question | predicted | effect | 95 % interval | rule | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for each in findings:
        bounds = f"{_number(each.low)} to {_number(each.high)}"
        effect = f"{_number(each.mean)} {each.unit}".rstrip()
        predicted = _number(each.prediction)
        cells = (each.question, predicted, effect, bounds, each.rule, each.verdict)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "unknown"
    return f"{value:.3g}" if math.isfinite(value) else ("∞" if value > 0 else "-∞")


def source_link(place: str) -> str:
    """A link from a page in docs/lab/ID to the file; line numbers would not stay true."""
    path, _ = source_of(place)
    return f"[`{place}`](../../../src/{path})"


def source_of(place: str) -> tuple[str, int]:
    """The file, from `elman/` on, and the line of "package.module:Class.method"."""
    module, _, name = place.partition(":")
    line = inspect.getsourcelines(_object(place))[1] if name else 1
    return f"{module.replace('.', '/')}.py", line


def code_of(place: str) -> str:
    """The lines of "package.module:Class.method", without the indentation of a method."""
    return inspect.cleandoc("\n" + inspect.getsource(_object(place)))


def _object(place: str) -> Any:
    module, _, name = place.partition(":")
    found: Any = import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found


def overview(all_experiments: Iterable[Experiment], folder: Path) -> str:
    """The page over all claims with results in `folder`."""
    lines = [
        *(WRITTEN, "", "# The lab: the claims of the lectures, measured", ""),
        "Each claim is an experiment: `elman lab run C1` repeats it, `--knob` breaks it, and the "
        "verdict follows from the interval over seeds by a rule that was written before.",
        "",
        "| claim | verdict here | effect | 95 % interval | rule | time |",
        "|---|---|---|---|---|---|",
    ]
    for experiment in all_experiments:
        own = folder / experiment.id
        if not (own / results.RESULT_FILE).is_file():
            continue
        result = results.read_result(own)
        for number, finding in enumerate(result.findings):
            name = f"[{experiment.id}]({experiment.id}/README.md) {experiment.title}"
            cells = (
                f"{name}: {finding.question}" if number == 0 else finding.question,
                f"**{result.verdict}**" if number == 0 else f"({finding.verdict})",
                f"{_number(finding.mean)} {finding.unit}".rstrip(),
                f"{_number(finding.low)} to {_number(finding.high)}",
                finding.rule,
                duration(result.seconds) if number == 0 else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def verdict_table(all_experiments: Iterable[Experiment], folder: Path) -> str:
    """A row for each claim with a result in `folder`: the question that decided."""
    lines = [
        "| claim | verdict here | what decided | effect, 95 % interval | rule |",
        "|---|---|---|---|---|",
    ]
    for experiment in all_experiments:
        own = folder / experiment.id
        if not (own / results.RESULT_FILE).is_file():
            continue
        result = results.read_result(own)
        decided = next(each for each in result.findings if each.verdict == result.verdict)
        bounds = f"{_number(decided.low)} to {_number(decided.high)}"
        cells = (
            f"[{experiment.id}]({own.as_posix()}/README.md) {experiment.title}",
            result.verdict,
            decided.question,
            f"{_number(decided.mean)} ({bounds})",
            decided.rule,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def notebook(experiment: Experiment) -> str:
    """A Jupyter notebook that runs the experiment."""

    def cell(kind: str, text: str) -> dict[str, object]:
        more: dict[str, object] = {"execution_count": None, "outputs": []} if kind == "code" else {}
        lines = text.splitlines(keepends=True)
        return {"cell_type": kind, "metadata": {}, "source": lines, **more}

    about = f"# {experiment.id}: {experiment.title}\n\n> {experiment.claim}\n\n{experiment.design}"
    knob = experiment.knob
    cells = [
        cell("markdown", about),
        cell("code", f'from elman import lab\n\nresult = lab.run_claim("{experiment.id}")\nresult'),
        cell("markdown", f"## Break it\n\n{experiment.breaks}"),
        cell("code", f'lab.run_claim("{experiment.id}", knob={knob.broken!r})'),
    ]
    made = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def html_page(experiment: Experiment, result: Result) -> str:
    """A page in one file: text, tables and figures in light and dark."""
    drawn = experiment.figure(result.rows)
    images = {
        theme: base64.b64encode(picture(drawn, "svg", theme)).decode()
        for theme in ("light", "dark")
    }
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c.strip())}</td>" for c in line.strip("|").split("|"))
        for line in _table(result.findings)[2:]
    )
    head = "".join(f"<th>{c.strip()}</th>" for c in _table([])[0].strip("|").split("|"))
    source = "data:image/svg+xml;base64,"
    parts = {
        "Design": experiment.design,
        "What breaks it": experiment.breaks,
        "What it does not say": experiment.limits,
    }
    sections = "".join(
        f"<h2>{name}</h2><p>{html.escape(text)}</p>" for name, text in parts.items() if text
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{experiment.id}: {html.escape(experiment.title)}</title>
<style>:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
padding: 0 1rem }}
table {{ border-collapse: collapse }} td, th {{ padding: .3rem .6rem; text-align: left;
border-bottom: 1px solid #8886 }} img {{ max-width: 100% }}</style>
<h1>{experiment.id}: {html.escape(experiment.title)}</h1>
<blockquote>{html.escape(experiment.claim)}</blockquote>
<p><strong>Verdict here: {result.verdict}.</strong> {html.escape(_ran(result))}</p>
<table><tr>{head}</tr>{rows}</table>
<picture><source media="(prefers-color-scheme: dark)" srcset="{source}{images["dark"]}">
<img alt="{html.escape(experiment.title)}" src="{source}{images["light"]}"></picture>
<p>{html.escape(drawn.caption)}</p>{sections}
</html>
"""
