"""The loop knows no task: what it needs it asks through protocols."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elman.base.documents import read_json_lines
from elman.batches.batch import Batch
from elman.batches.conditional import conditional_batch
from elman.batches.wording import Spelled, Wording
from elman.nn.graphed import Replayable
from elman.nn.state import State
from elman.nn.unfreezing import GradualUnfreezing
from elman.objectives.likelihood import likelihood
from elman.objectives.objective_config import LikelihoodConfig, RegimeConfig
from elman.objectives.outcome import Outcome
from elman.objectives.regimes import Regime, training_objective
from elman.train import checkpoint, loop
from elman.train.loop import METRICS_FILE, MODEL_FILE, STATE_FILE
from elman.train.optimisers import OptimiserConfig
from elman.train.trainable import StatefulObjective, Trainable, Validation
from elman.train.training_config import (
    ChunkTrainingConfig,
    LaneTrainingConfig,
    SamplingTrainingConfig,
    TrainingConfig,
)


def imported(path: Path) -> set[str]:
    """Modules and the names taken from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize(
    "file", sorted(Path(loop.__file__).parent.glob("*.py")), ids=lambda f: f.stem
)
def test_the_loop_imports_no_model_regime_or_schedule_of_a_task(file: Path) -> None:
    """It tested for LanguageModel and Batch, and held a judge, a regime and a thawing."""
    allowed = {"elman.batches.batch.TaskBatch", "elman.objectives.outcome.Outcome"}
    left = {"elman.models", "elman.objectives", "elman.batches", "elman.tasks"}
    left |= {"elman.nn.unfreezing", "elman.decode", "elman.evaluate"}
    wrong = {
        name
        for name in imported(file) - allowed
        if any(name == folder or name.startswith(f"{folder}.") for folder in left)
    }
    assert not wrong


@dataclass
class Weighted:
    """Teacher forcing plus a trained scale whose weight grows with the progress."""

    plain: Any
    scale: nn.Linear
    progress: float = -1.0

    def begin_update(self, progress: float) -> None:
        self.progress = progress

    def modules(self) -> Mapping[str, nn.Module]:
        return {"judge": self.scale}

    def __call__(self, batch: Batch, state: State | None) -> Outcome:
        assert self.progress >= 0, "begin_update comes first"
        outcome: Outcome = self.plain(batch, state)
        extra = (self.scale(torch.ones(1, 2)) - 3.0).square().sum()
        return replace(outcome, loss=outcome.loss + self.progress * extra)


def lines(folder: Path) -> list[dict[str, Any]]:
    clockwork = ("seconds", "seconds_left", "tokens_per_second")
    found = read_json_lines(folder / METRICS_FILE)
    return [{k: v for k, v in line.items() if k not in clockwork} for line in found]


def weighted_task(bench) -> Trainable:
    torch.manual_seed(5)
    scale = nn.Linear(2, 1)
    task: Trainable = bench.task()
    return replace(task, objective=Weighted(task.objective, scale))


def test_an_objective_with_modules_of_its_own_is_trained_and_resumed_exactly(bench) -> None:
    bench.change(checkpoint_seconds=0.0)
    task = weighted_task(bench)
    assert isinstance(task.objective, StatefulObjective)
    before = task.objective.scale.weight.detach().clone()
    list(bench.fit("whole", task))
    assert not torch.equal(task.objective.scale.weight, before)
    assert task.objective.progress == pytest.approx(29 / 30)

    broken = bench.fit("broken", weighted_task(bench))
    for report in broken:
        if report.step >= 13:
            break
    broken.close()
    list(bench.fit("broken", weighted_task(bench), resume=True))
    assert lines(bench.folder / "broken") == lines(bench.folder / "whole")
    states = [checkpoint.read(bench.folder / run / STATE_FILE)[0] for run in ("whole", "broken")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert {"judge.weight", "judge.bias"} <= states[0].keys()
    # The optimiser's state has the model's parameters first, then the objective's.
    number = len(list(task.model.parameters()))
    assert states[0][f"optimiser.{number}.exp_avg"].shape == (1, 2)
    model, _ = checkpoint.read(bench.folder / "whole" / MODEL_FILE)
    assert not any(name.startswith("judge") for name in model)


def test_a_gradient_that_is_not_finite_is_named_in_the_objectives_module(bench) -> None:
    task = weighted_task(bench)
    task.objective.scale.weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(Exception, match=r"gradient of judge\.weight"):
        list(bench.fit(task=task))


def test_a_run_is_resumed_before_its_last_group_is_unfrozen(bench) -> None:
    bench.change(steps=4, batch_size=2)
    bench.optimiser = OptimiserConfig(kind="sgd", learning_rate=0.1, momentum=0.5)

    def task() -> Trainable:
        made = bench.task(sample=None)
        weights = next(made.model.parameters())
        groups = GradualUnfreezing([[weights]], epochs_per_group=1e6, rate=0.5, rate_decay=1.0)
        return replace(made, unfreezing=groups)

    list(bench.fit(task=task()))
    bench.change(steps=6)
    assert next(iter(bench.fit(task=task(), resume=True))).kind == "resume"


def test_unfreezing_is_told_the_epochs_and_changes_what_is_trained(bench) -> None:
    bench.change(epochs=3, validate_every=0)
    task = bench.task()
    weights = task.model.input.weight
    unfreezing = GradualUnfreezing([[weights]], epochs_per_group=1.0, rate=0.5, rate_decay=1.0)
    seen: list[tuple[int, Tensor]] = []

    def noting(batch: Batch, state: State | None) -> Outcome:
        seen.append((task.batches.epoch, weights.detach().clone()))
        return task.objective(batch, state)

    list(bench.fit(task=replace(task, unfreezing=unfreezing, objective=noting)))
    changed = [not torch.equal(a, b) for (_, a), (_, b) in pairwise(seen)]
    per_epoch = len(seen) // 3
    assert not any(changed[: per_epoch - 1])
    assert all(changed[per_epoch + 1 :])


def test_kernels_are_noted_after_the_first_update_and_kept_in_the_train_state(bench) -> None:
    bench.change(steps=6, checkpoint_seconds=0.0)
    ran: list[bool] = []

    @contextmanager
    def watch() -> Iterator[dict[str, str]]:
        kernels: dict[str, str] = {}
        yield kernels
        ran.append(True)
        kernels["layer"] = "torch"

    reports = bench.fit(watch=watch)
    kinds = [next(reports), next(reports)]
    assert [(r.kind, r.step) for r in kinds] == [("start", 0), ("note", 1)]
    assert kinds[1].note == "kernels: layer: torch"
    list(reports)
    assert len(ran) == 1
    header = checkpoint.read_header(bench.folder / "run" / STATE_FILE)
    assert header["kernels"] == {"layer": "torch"}

    # A resumed run says it again, without a second line in the log.
    written = (bench.folder / "run" / METRICS_FILE).read_text().count('"note": "kernels')
    bench.change(steps=8)
    resumed = [r.note for r in bench.fit(resume=True, watch=watch) if r.kind == "note"]
    assert resumed == ["kernels: layer: torch"]
    after = (bench.folder / "run" / METRICS_FILE).read_text().count('"note": "kernels')
    assert written == after == 1


def test_a_model_without_recurrent_layers_says_what_computes_it(bench) -> None:
    @contextmanager
    def watch() -> Iterator[dict[str, str]]:
        yield {}

    bench.change(steps=1)
    (note,) = (r.note for r in bench.fit(watch=watch) if r.kind == "note")
    assert note == "kernels: torch's own operations (no layer is recurrent)"


def test_teacher_forcing_goes_from_the_loop_to_an_update_to_the_likelihood_to_the_model(
    bench,
) -> None:
    files: list[str] = []
    task = bench.task()
    hidden = task.model.hidden

    def noting(*arguments: Any) -> Any:
        if task.model.training:
            files[:] = [Path(frame.filename).name for frame in traceback.extract_stack()]
        return hidden(*arguments)

    task.model.hidden = noting
    objective = training_objective(RegimeConfig(), task.model)
    bench.change(steps=1)
    list(bench.fit(task=replace(task, objective=objective)))
    called = files[files.index("loop.py") : -1]
    assert list(dict.fromkeys(called)) == ["loop.py", "updating.py", "likelihood.py"]
    assert isinstance(objective, partial)
    assert objective.func is likelihood
    assert isinstance(training_objective(RegimeConfig(regime="free_running"), task.model), Regime)


def test_a_batch_says_whether_its_shapes_come_again() -> None:
    ids_BT = torch.arange(12).view(2, 6)
    batch = Batch(ids_BT[:, :-1], ids_BT[:, 1:])
    assert isinstance(batch, Replayable)
    assert batch.graph_key() == ((2, 5), (2, 5))
    assert replace(batch, mask_BT=ids_BT[:, 1:] > 0).graph_key() is None
    kept = batch.clone()
    kept.copy_(Batch(batch.targets_BT, batch.tokens_BT))
    assert kept.tokens_BT.equal(batch.targets_BT)
    assert kept.targets_BT.equal(batch.tokens_BT)
    assert batch.tokens_BT.equal(ids_BT[:, :-1])
    wording = Wording.of([Spelled.of_words(["a"])] * 2)
    assert conditional_batch((ids_BT,), [[3], [4]], 0).graph_key() is not None
    assert conditional_batch((ids_BT, wording), [[3], [4]], 0).graph_key() is None


def test_settings_are_split_by_who_reads_them() -> None:
    def own(config: type[Any], *parents: type[Any]) -> set[str]:
        names = {f.name for f in fields(config)}
        return names - {f.name for parent in parents for f in fields(parent)}

    assert own(SamplingTrainingConfig, TrainingConfig) == {"sample_length"}
    assert own(ChunkTrainingConfig, TrainingConfig) == {"chunk_length"}
    lanes = own(LaneTrainingConfig, ChunkTrainingConfig, SamplingTrainingConfig)
    starts = {"start", "new_words"}
    assert lanes == {"vary_chunks", "shuffle_lanes", "reset_state"} | starts
    penalties = {"label_smoothing", "activation_penalty", "change_penalty"}
    assert own(LikelihoodConfig) == penalties
    assert penalties.isdisjoint(own(RegimeConfig, LikelihoodConfig))


def test_the_header_of_a_model_has_no_setting_of_the_validation() -> None:
    assert Validation(1.0, None, 3).to_dict() == {
        "nats_per_token": 1.0,
        "bits_per_byte": None,
        "num_tokens": 3,
    }
    found = Validation(None, None, 3, {"f1": 0.5}, by_surprisal=True).to_dict()
    assert found["metrics"] == {"f1": 0.5}
    assert "by_surprisal" not in found
