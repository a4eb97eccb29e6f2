"""`elman lab`: list claims, run their experiments, check exercises."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.files import explained, make_folder, owned_folder, write_text
from elman.runs.new_folder import missing, remove_empty
from elman.terminal.console import duration, number, result, result_json, table, talk
from elman.terminal.options import Device, Json, argument, option

if TYPE_CHECKING:
    from elman.lab.experiment import Experiment, Row
    from elman.lab.results import Result
    from elman.lab.verdicts import Finding

app = typer.Typer(help="Test claims about recurrent networks by experiment.", no_args_is_help=False)


@app.callback(invoke_without_command=True)
def claims(context: typer.Context, json: Json = False) -> None:
    """List claims about recurrent networks, and test them by experiment.

    The claims are those of the lectures in docs/tour. The published verdicts are ours, those of the
    README; "here" is that of the last run on this machine with the default size and five or more
    seeds.
    """
    if context.invoked_subcommand is not None:
        return
    from elman.lab.claims import PUBLISHED, experiments
    from elman.lab.results import remembered

    found = []
    for experiment in experiments():
        noted = remembered(experiment)
        found.append(
            {
                "id": experiment.id,
                "claim": experiment.claim,
                "source": "; ".join(experiment.sources),
                "published": PUBLISHED[experiment.id],
                "verdict": noted.get("verdict"),
                "seconds": noted.get("seconds", experiment.seconds),
                "title": experiment.title,
            }
        )
    if json:
        result_json(found)
        return
    header = ("claim", "what it says", "lecture: slide", "published", "here", "time")
    rows = []
    for one in found:
        verdicts = one["published"], one["verdict"] or "not run"
        rows.append((one["id"], one["title"], one["source"], *verdicts, duration(one["seconds"])))
    result(table(rows, header))
    talk("published: five seeds on two cores; here: the last whole run on this machine")
    talk("elman lab run C1 runs one; elman lab run --all runs all")


@app.command()
def run(
    claim: Annotated[str | None, argument("[CLAIM]", "A claim, such as C1.")] = None,
    all_claims: Annotated[bool, option(None, "Run every claim.", "--all")] = False,
    seeds: Annotated[int, option("N", "Seeds; two or more give an interval.", min=1)] = 5,
    first_seed: Annotated[int, option("N", "The first seed.", min=0)] = 1,
    knob: Annotated[str | None, option("VALUE", "Value of the experiment's knob.")] = None,
    size: Annotated[
        Literal["tiny", "small", "large"],
        option("tiny|small|large", "tiny: a quick trial; large: for a GPU."),
    ] = "small",
    minutes: Annotated[
        float | None, option("M", "Start no seed after M minutes. [default: run all seeds]")
    ] = None,
    out: Annotated[Path | None, option("DIR", "Keep data, figures and page in DIR/CLAIM.")] = None,
    export: Annotated[
        Path | None, option("FILE", "Write a notebook (.ipynb) or a page (.html).")
    ] = None,
    jobs: Annotated[
        int | None, option("N", "Seeds at a time. [default: one for each core]", min=1)
    ] = None,
    device: Device = "cpu",
    stream: Annotated[
        bool, option(None, "Print each row as a line of JSON as it is measured.", "--stream")
    ] = False,
    json: Json = False,
) -> None:
    """Run the experiment of a claim; print effects and a verdict.

    The verdict follows from the data: the claim holds if the 95 % interval over seeds keeps the
    rule of every question, does not hold here if one interval breaks its rule, else the data
    cannot tell.
    """
    if (claim is None) == (not all_claims):
        raise UsageError("name one claim, or give --all", "elman lab lists the claims")
    if all_claims and (knob is not None or export is not None):
        raise UsageError("--knob and --export are for one claim", "name it instead of --all")
    if export is not None and export.suffix not in (".ipynb", ".html"):
        raise UsageError(f"{export} is neither a notebook nor a page", "end it in .ipynb or .html")
    if minutes is not None and not 0 < minutes < inf:
        raise UsageError(f"--minutes cannot be {minutes:g}", "use a finite number above 0")
    from elman.lab.claims import experiment_named, experiments
    from elman.lab.results import remember
    from elman.lab.running import Run
    from elman.lab.running import run as run_experiment
    from elman.runs.machine import machine

    for folder in (out, None if export is None else export.parent):
        if folder is not None:
            _check_writable(folder)
    if export is not None and export.is_dir():
        raise UsageError(f"{export} is a folder", "name a file")
    chosen = list(experiments()) if claim is None else [experiment_named(claim)]
    device = machine(device).device
    table_rows = []
    for experiment in chosen:
        value = None if knob is None else experiment.knob.parse(knob)
        how: dict[str, Any] = {"seeds": seeds, "first_seed": first_seed, "size": size}
        how |= {"device": device, "minutes": minutes, "jobs": jobs, "knob": value}
        made = _Stream() if stream else _Progress(experiment, seeds)
        with closing(made) as show, _terminable():
            found = run_experiment(Run(experiment=experiment, **how), show.row, show.ended)
        remember(experiment, found)
        if out is not None:
            _keep(experiment, found, out)
        if export is not None:
            _export(experiment, found, export)
        if json or stream:
            result_json(found.to_dict())
        elif claim is not None:
            _show(experiment, found)
        else:
            table_rows.append((experiment.id, experiment.title, found.verdict, found.seconds))
            talk(f"{experiment.id}: {found.verdict} ({duration(found.seconds)})")
    if table_rows:
        result(table(table_rows, ("claim", "what it says", "verdict here", "seconds")))
    if out is not None:
        from elman.lab.pages import overview

        write_text(out / "README.md", overview(experiments(), out))
        talk(f"wrote {out / 'README.md'}")


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end as Ctrl-C does: the workers and their files go first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _check_writable(folder: Path) -> None:
    """Raise an error before an experiment of hours whose results could not be kept."""
    made = missing(folder)
    try:
        with explained(folder):
            make_folder(folder)
            with owned_folder(folder):
                pass
    finally:
        remove_empty(made)


def _keep(experiment: Experiment, found: Result, out: Path) -> None:
    from elman.lab.pages import write_page
    from elman.lab.results import RESULT_FILE, place, save

    save(found, place(out, experiment, found.knob, found.size))
    if (out / experiment.id / RESULT_FILE).is_file():
        write_page(experiment, out / experiment.id)
    else:
        talk(f"no page of {experiment.id} yet: {out} has no result of it with the default knob")


def _export(experiment: Experiment, found: Result, export: Path) -> None:
    from elman.lab.pages import html_page, notebook

    text = notebook(experiment) if export.suffix == ".ipynb" else html_page(experiment, found)
    write_text(export, text)
    talk(f"wrote {export}")


def _show(experiment: Experiment, found: Result) -> None:
    """Print the claim, the answers and the verdict."""
    result(f"{experiment.id}: {experiment.claim}\n")
    rows = [
        (
            each.question,
            number(each.prediction),
            f"{number(each.mean)} {each.unit}".rstrip(),
            _interval(each),
            each.rule,
            each.verdict,
        )
        for each in found.findings
    ]
    result(table(rows, ("question", "predicted", "effect", "95 % interval", "rule", "verdict")))
    knob = f", {experiment.knob.name} {found.knob}"
    ran = f"{counted(len(found.seeds), 'seed')}{knob}, {duration(found.seconds)}"
    result(f"\n{found.verdict} ({ran})")
    if len(found.seeds) == 1:
        talk("one seed has no interval: give two or more --seeds")
    if found.knob == experiment.knob.default:
        talk(f"break it: elman lab run {experiment.id} --knob {experiment.knob.broken}")


def _interval(finding: Finding) -> str:
    if isinf(finding.low) and isinf(finding.high):
        return "none"
    return f"{number(finding.low)} to {number(finding.high)}"


class _Progress:
    """Say now and then how far it is."""

    def __init__(self, experiment: Experiment, num_seeds: int) -> None:
        from elman.terminal.progress import display

        self._id, self._num_seeds = experiment.id, num_seeds
        self._rows = self._ended = 0
        self._display = display()

    def row(self, row: Row) -> None:
        self._rows += 1
        self._show()

    def ended(self, seed: int) -> None:
        self._ended += 1
        self._show()

    def _show(self) -> None:
        done = self._ended / self._num_seeds
        line = f"{self._id}: {self._ended} of {self._num_seeds} seeds, {self._rows:,} rows"
        self._display.update(line, done)

    def close(self) -> None:
        self._display.close()


class _Stream:
    """Print rows and complete seeds as they come."""

    def row(self, row: Row) -> None:
        self._print({"row": row})

    def ended(self, seed: int) -> None:
        self._print({"ended": seed})

    def _print(self, value: dict[str, Any]) -> None:
        result_json(value)
        sys.stdout.flush()

    def close(self) -> None:
        pass


@app.command()
def check(
    exercise: Annotated[str, argument("EXERCISE", "Its number in the tour, such as 004-2.")],
    file: Annotated[Path, argument("FILE", "Your answer, in the form that the exercise names.")],
    json: Json = False,
) -> None:
    """Check the answer to an exercise of the tour (docs/tour)."""
    from elman.lab.exercises import check as check_answer

    found = check_answer(exercise, file)
    if json:
        result_json({"exercise": exercise, "right": found.right, "why": found.why})
    else:
        result(f"{'right' if found.right else 'wrong'}: {found.why}")
    if not found.right:
        raise typer.Exit(1)
