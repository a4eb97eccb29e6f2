"""A captured step gives what an ordinary one gives, over odd shapes, new epochs and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elman.base.config import parse_overrides
from elman.base.documents import read_json_lines
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.train.ranks import ALONE, Ranks
from elman.train.report import Report

pytestmark = pytest.mark.gpu

TEXT = "the cat sat on the mat and the dog sat on the log .\n" * 40


def losses(folder: Path) -> list[tuple[int, float, float]]:
    lines = read_json_lines(folder / "metrics.jsonl")
    return [(r["step"], r["loss"], r["gradient_norm"]) for r in lines if r["kind"] == "step"]


def reports(
    folder: Path,
    *settings: str,
    steps: int = 40,
    resume: bool = False,
    ranks: Ranks = ALONE,
) -> Iterator[Report]:
    text = folder.parent / "text.txt"
    text.write_text(TEXT)
    config = resolve(
        "lm",
        [str(text)],
        settings=parse_overrides(
            [
                "tokenizer.kind=word",
                "model.hidden_size=16",
                "model.embedding_size=16",
                "training.batch_size=4",
                "training.chunk_length=7",
                "training.report_every=1",
                *settings,
            ]
        ),
        steps=steps,
        device="cuda",
    ).config
    return train(config, folder, device="cuda", resume=resume, ranks=ranks)


def run(folder: Path, *settings: str, **options: Any) -> Report:
    *_, last = reports(folder, *settings, **options)
    return last


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_replayed_equals_ordinary(tmp_path: Path, optimiser: str, precision: str) -> None:
    settings = (f"optimiser.kind={optimiser}", f"training.precision={precision}")
    run(tmp_path / "ordinary", *settings, "training.cuda_graph=false")
    run(tmp_path / "graphed", *settings)
    ordinary, graphed = losses(tmp_path / "ordinary"), losses(tmp_path / "graphed")
    assert len(ordinary) == 40
    for (step, loss, norm), (other_step, other_loss, other_norm) in zip(
        ordinary, graphed, strict=True
    ):
        assert step == other_step
        assert other_loss == pytest.approx(loss, rel=1e-4)
        assert other_norm == pytest.approx(norm, rel=1e-2)


def test_resuming_a_graphed_run(tmp_path: Path) -> None:
    settings = ("optimiser.kind=adam", "training.checkpoint_seconds=0")
    run(tmp_path / "whole", *settings)
    for report in reports(tmp_path / "parts", *settings):
        if report.step == 23:
            break
    run(tmp_path / "parts", *settings, resume=True)
    for whole, parts in zip(losses(tmp_path / "whole"), losses(tmp_path / "parts"), strict=True):
        assert parts == pytest.approx(whole, rel=1e-3)


def test_what_cannot_be_captured_runs_as_it_is(tmp_path: Path) -> None:
    settings = ("model.head.kind=adaptive", "model.head.cutoffs=[4,8]", "model.dropout_output=0.2")
    last = run(tmp_path / "adaptive", *settings)
    assert last.kind == "done"
    assert last.summary is not None
    assert "not replayed from a CUDA graph" in last.summary["kernels"]["updates"]


class OneOfTwo(Ranks):
    """A single process that computes all rows, and sums its gradients as one of two would."""

    def rows(self, num_rows: int) -> slice:
        return slice(0, num_rows)

    def gather(self, value: Any) -> list[Any]:
        return [value]


@pytest.mark.parametrize("graphed", [True, False])
def test_gradients_are_summed_by_nccl_in_a_captured_step(tmp_path: Path, graphed: bool) -> None:
    import torch

    distributed: Any = torch.distributed
    graph = f"training.cuda_graph={str(graphed).lower()}"
    run(tmp_path / "alone", "optimiser.kind=adam", graph)
    store = distributed.HashStore()
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        run(tmp_path / "summed", "optimiser.kind=adam", graph, ranks=OneOfTwo(0, 2))
    finally:
        distributed.destroy_process_group()
    found = losses(tmp_path / "summed")
    for alone, summed in zip(losses(tmp_path / "alone"), found, strict=True):
        assert summed == pytest.approx(alone, rel=1e-4)
