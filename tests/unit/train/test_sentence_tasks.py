"""The loop with batches that are not a language model's: sentences alone, and a metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elman.base.documents import read_json_lines
from elman.batches.buckets import SentenceBatch, SentenceBatches, pad
from elman.nn.state import State
from elman.objectives.outcome import Outcome
from elman.terminal.progress import step_line, valid_line
from elman.train.loop import fit
from elman.train.optimisers import OptimiserConfig
from elman.train.report import Report
from elman.train.schedules import ScheduleConfig
from elman.train.trainable import Trainable, Validation
from elman.train.training_config import TrainingConfig

SENTENCES = [[(7 * row + time) % 11 for time in range(1 + row % 5)] for row in range(43)]
LABELS = [int(sum(sentence) % 2) for sentence in SENTENCES]


@dataclass(frozen=True, kw_only=True)
class LabelledBatch(SentenceBatch):
    tokens_BT: Tensor
    mask_BT: Tensor
    labels_B: Tensor


def make(indices: list[int]) -> LabelledBatch:
    tokens_BT, mask_BT = pad([SENTENCES[i] for i in indices])
    labels_B = torch.tensor([LABELS[i] for i in indices])
    return LabelledBatch(
        tokens_BT=tokens_BT, mask_BT=mask_BT, lengths_B=mask_BT.sum(1), labels_B=labels_B
    )


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Embedding(11, 6)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(6, 2)

    def forward(self, batch: LabelledBatch) -> Tensor:
        summed = (self.input(batch.tokens_BT) * batch.mask_BT.unsqueeze(2)).sum(1)
        logits: Tensor = self.output(self.dropout(summed))
        return logits


def task(metrics: Iterator[dict[str, float]] | None = None) -> Trainable:
    torch.manual_seed(1)
    model = Bag()

    def objective(batch: LabelledBatch, state: State | None) -> Outcome:
        assert state is None
        losses_B = nn.functional.cross_entropy(model(batch), batch.labels_B, reduction="none")
        return Outcome(losses_B.mean(), losses_B.sum().detach(), batch.num_targets)

    def validate(limit: int | None) -> Validation:
        everything = make(list(range(len(SENTENCES))))
        right = float((model(everything).argmax(1) == everything.labels_B).float().mean())
        found = {"accuracy": right} if metrics is None else next(metrics)
        return Validation(None, None, everything.num_tokens, found)

    lengths = [len(sentence) for sentence in SENTENCES]
    return Trainable(
        model=model,
        objective=objective,
        batches=SentenceBatches(lengths, make, batch_size=8, seed=3),
        validate=validate,
        valid_tokens=sum(lengths),
        probe=lambda: 8,
        exact=False,
    )


TRAINING = TrainingConfig(batch_size=8, steps=12, report_every=3, validate_every=4)


def run(
    folder: Path, work: Trainable, training: TrainingConfig = TRAINING, **more: Any
) -> list[Report]:
    optimiser = OptimiserConfig(kind="adam", learning_rate=0.02)
    return list(fit(work, optimiser, ScheduleConfig(kind="constant"), training, folder, **more))


def test_a_metric_takes_the_place_of_perplexity(tmp_path: Path) -> None:
    reports = run(tmp_path, task())
    lines = read_json_lines(tmp_path / "metrics.jsonl")
    valid = [line for line in lines if line["kind"] == "valid"]
    assert [line["step"] for line in valid] == [4, 8, 12]
    assert all(0 <= line["valid_accuracy"] <= 1 for line in valid)
    assert not any("perplexity" in key or key == "valid_loss" for line in lines for key in line)
    said = valid_line(next(r for r in reports if r.kind == "valid"))
    assert said.startswith(f"validation after step 4: accuracy {valid[0]['valid_accuracy']:.2%}")
    assert "perplexity" not in step_line(next(r for r in reports if r.kind == "step"))


def test_tokens_are_counted_and_losses_are_means_over_targets(tmp_path: Path) -> None:
    work = task()
    epoch = -(-len(SENTENCES) // 8)
    reports = run(tmp_path, work, replace(TRAINING, steps=None, epochs=1, report_every=epoch))
    step = next(r for r in reports if r.kind == "step")
    assert step.tokens == sum(map(len, SENTENCES))
    assert step.loss == pytest.approx(0.7, abs=0.5)


def test_the_best_model_is_the_one_with_the_highest_metric(tmp_path: Path) -> None:
    found = iter([{"f1": 0.5, "loss": 9.0}, {"f1": 0.7, "loss": 1.0}, {"f1": 0.6, "loss": 0.1}])
    reports = run(tmp_path, task(found))
    assert [r.best for r in reports if r.kind == "valid"] == [True, True, False]
    from elman.train import checkpoint

    header = checkpoint.read_header(tmp_path / "model.safetensors")
    assert header["step"] == 8
    assert header["validation"]["metrics"] == {"f1": 0.7, "loss": 1.0}


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([4.0, 3.0, 2.0], [True, True, True]),  # BLEU is 0 until whole phrases are right
        ([4.0, 3.0, 3.5], [True, True, False]),
        ([None, None, None], [True, False, False]),
    ],
)
def test_of_models_with_one_metric_the_lower_loss_is_the_best(
    tmp_path: Path, losses: list[float | None], best: list[bool]
) -> None:
    given = iter(losses)
    work = replace(task(), validate=lambda limit: Validation(next(given), None, 8, {"bleu": 0.0}))
    reports = run(tmp_path, work)
    assert [r.best for r in reports if r.kind == "valid"] == best


def test_accumulating_gradients_over_parts_changes_nothing(tmp_path: Path) -> None:
    def weights(accumulate: int) -> Tensor:
        work = task()
        model: Any = work.model
        model.dropout.p = 0.0
        run(tmp_path / str(accumulate), work, replace(TRAINING, accumulate=accumulate))
        result: Tensor = model.output.weight.detach().clone()
        return result

    torch.testing.assert_close(weights(4), weights(1), rtol=1e-4, atol=1e-6)


def test_a_resumed_run_goes_through_the_same_losses(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", task())
    first = run(tmp_path / "cut", task(), replace(TRAINING, steps=7))
    second = run(tmp_path / "cut", task(), TRAINING, resume=True)
    assert first[-1].step == 7
    losses = {r.step: r.loss for r in [*first, *second] if r.kind == "step"}
    expected = {r.step: r.loss for r in whole if r.kind == "step"}
    assert {step: losses[step] for step in (3, 6, 12)} == {s: expected[s] for s in (3, 6, 12)}
