"""Training for experiments: the usual loop, in a run folder that is thrown away; timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from elman.lab.experiment import Trial
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.train.report import Report

PLAIN: Mapping[str, Any] = {
    "optimiser.kind": "adam",
    "optimiser.learning_rate": 0.005,
    "schedule.kind": "constant",
    "schedule.warmup_steps": 0,
    "training.batch_size": 32,
    "training.clip_norm": 1.0,
    "training.sample_length": 0,
    "model.dropout_input": 0.0,
    "model.dropout_output": 0.0,
}
"""Settings of language models that do not depend on the text or the machine, without dropout."""


def fitted(
    trial: Trial,
    task: str,
    data: Sequence[str | Path],
    *,
    out: str,
    settings: Mapping[str, Any],
    valid: Sequence[str | Path] = (),
    test: Sequence[str | Path] = (),
    steps: int | None = None,
    seed: int | None = None,
) -> Iterator[Report]:
    """Train a model of a task in the folder `out` of the trial; yield reports as they come.

    `settings` have dotted names. Then `elman.load(trial.folder / out, device=trial.device)` opens
    the model. Counted models take no `steps`; others train in bfloat16 on a GPU.
    """
    if steps is not None and trial.device != "cpu":
        settings = {"training.precision": "bf16", **settings}
    resolved = resolve(
        task,
        list(map(str, data)),
        valid=list(map(str, valid)),
        test=list(map(str, test)),
        settings=settings,
        steps=steps,
        seed=None if steps is None else trial.seed if seed is None else seed,
        device=trial.device,
    )
    yield from train(resolved.config, trial.folder / out, device=trial.device)


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Time `work`; a GPU must have finished before and after."""
    is_gpu = device != "cpu"
    if is_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if is_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began
