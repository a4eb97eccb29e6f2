"""How fast a configuration trains, also beside other programs.

Runs that are compared in the same minutes make the updates that their speed allows: other programs
then disturb neither their speeds nor the runs, which may take any time.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from elman.recipes.run import train

SPEED_STEPS, SPEED_REPORTS = 60, 6
"""Updates with which a speed is measured at least, and the reports of these, of which the fastest
one counts."""
LONGEST = 1_000_000
"""Updates of a measurement that lasts for some seconds: more than it makes."""


class Interrupted(Exception):
    """A signal asked to stop."""


class Speed(NamedTuple):
    """Of the fastest report."""

    updates: float
    """Updates per second by the clock."""
    idle_updates: float
    """Updates per second on idle cores."""
    idle_tokens: float
    """Tokens per second on idle cores."""


def training_speed(config: Any, place: Path, device: str, *, seconds: float = 0.0) -> Speed:
    """Train in the folder `place` for `SPEED_STEPS` updates, and for `seconds` at least, without
    validation; remove the folder.

    On a CPU that other programs use as well, the time that they take is left out of the speed on
    idle cores: it is by the processor time of this process.
    """
    import torch

    from elman.runs.machine import machine

    steps = LONGEST if seconds else SPEED_STEPS
    length = {"minutes": None, "epochs": None, "steps": steps, "validate_every": steps}
    length |= {"report_every": SPEED_STEPS // SPEED_REPORTS}
    config = replace(config, training=replace(config.training, **length))
    where, threads = machine(device), torch.get_num_threads()
    found, last, begun = Speed(0.0, 0.0, 0.0), None, None
    try:
        for report in train(config, place, device=device):
            now = (report.step, report.tokens, time.monotonic(), time.process_time())
            begun = now[2] if begun is None else begun
            if report.kind == "step" and last is not None:
                updates, tokens, passed, used = (b - a for a, b in zip(last, now, strict=True))
                idle = passed if where.is_gpu else min(passed, used / threads)
                rates = (updates / passed, updates / idle, tokens / idle)
                found = Speed(*map(max, zip(found, rates, strict=True)))
            if report.kind in ("start", "step"):
                last = now
            if report.kind == "stopped":
                raise Interrupted("interrupted")
            if report.step >= SPEED_STEPS and now[2] - begun >= seconds:
                break  # without the validation
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Speed(*(rate or 1.0 for rate in found))
