"""`elman lab`: the claims of the lectures in docs/tour as experiments.

    experiment.py   what an experiment declares: claim, questions, knob, measure, figure
    c01_*.py ...    one file for each claim; claims.py is the table of them
    running.py      runs seeds in processes and collects their rows
    verdicts.py     from rows to effects, intervals and verdicts
    figures.py      figures as values, drawn by matplotlib here and by the studio
    results.py      results in files; pages.py: pages, notebooks, HTML
    training.py     the training loop for experiments
    exercises/      exercises and their checks

In Python, `run_claim("C1")` runs one and returns a `Result`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elman.lab.results import Result


def run_claim(id: str, *, knob: Any = None, **how: Any) -> Result:
    """Run the experiment of a claim; `how` are fields of `elman.lab.running.Run`."""
    from elman.lab.claims import experiment_named
    from elman.lab.running import Run, run

    experiment = experiment_named(id)
    value = None if knob is None else experiment.knob.parse(str(knob))
    return run(Run(experiment=experiment, knob=value, **how))
