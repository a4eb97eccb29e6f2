"""Runs of every past format can still be opened: each keeps a tiny specimen here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elman.runs.run_folder import open_run

SPECIMENS = Path(__file__).parent / "specimens"


@pytest.mark.parametrize("path", sorted(SPECIMENS.iterdir()), ids=lambda path: path.name)
def test_a_specimen_opens_and_says_what_it_always_said(path: Path) -> None:
    run = open_run(path)
    ids = torch.tensor([run.tokenizer.boundary_id, *run.tokenizer.encode("the student")])[None]
    with torch.no_grad():
        logprobs_BT, _ = run.model.logprobs(ids[:, :-1], ids[:, 1:], run.model.initial_state(1))
    assert float(logprobs_BT.sum()) == pytest.approx(-26.02584, abs=1e-3)
