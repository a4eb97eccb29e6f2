"""A language model of the first format can still be opened; test_specimens has one of each task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elman.tasks.opening import open_run

SPECIMEN = Path(__file__).parent / "lm-of-the-first-version"


def test_the_first_specimen_gives_the_same_probability_as_ever() -> None:
    run = open_run(SPECIMEN)
    ids = torch.tensor([run.tokenizer.boundary_id, *run.tokenizer.encode("the student")])[None]
    with torch.no_grad():
        logprobs_BT, _ = run.model.logprobs(ids[:, :-1], ids[:, 1:], run.model.initial_state(1))
    assert float(logprobs_BT.sum()) == pytest.approx(-26.02584, abs=1e-3)
