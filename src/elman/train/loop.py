"""The training loop: a generator that yields a report whenever there is something to say.

One loop serves every task. `Task` is what it works on: a model, an objective that turns a batch and
the carried state into a loss, an endless source of batches, and a way to validate. Truncated
backpropagation is nothing more than the loop handing a detached state to the next batch; tasks
whose sentences stand alone carry none.

Everything that resuming needs is in `_snapshot`; a run that is killed and resumed goes through the
same losses as one that was not. Whoever drives the generator prints, plots or stops; the loop
itself writes three things into the run folder: metrics.jsonl, the best model, and the train state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from elman.base.counting import counted
from elman.base.errors import ElmanError
from elman.batches.batch import Batch, TaskBatch
from elman.models.interface import LanguageModel
from elman.nn.kernels import memory
from elman.nn.state import State
from elman.nn.thawing import Thawing
from elman.objectives.likelihood import Outcome
from elman.objectives.regimes import Regime
from elman.train import checkpoint
from elman.train.budget import ONE_VALIDATION_SHARE, Budget
from elman.train.config import TrainingConfig
from elman.train.gradients import Meter, clip, diverged, perplexity
from elman.train.graphed import Figures, GraphedUpdate
from elman.train.interrupt import Interrupt
from elman.train.optimisers import Average, OptimiserConfig, averaging_starts, build, set_rate
from elman.train.report import MetricsLog, Report, TensorBoardLog
from elman.train.schedules import ScheduleConfig, rate_factor

MODEL_FILE = "model.safetensors"
METRICS_FILE = "metrics.jsonl"
STATE_FILE = "train/state.safetensors"
STATE_FORMAT = 1


class Batches(Protocol):
    """An endless source of batches that knows where it is."""

    @property
    def epoch(self) -> int:
        """Passes completed so far."""
        ...

    @property
    def tokens_per_epoch(self) -> int:
        """How many tokens one pass has."""
        ...

    def __next__(self) -> TaskBatch: ...

    def state_dict(self) -> dict[str, Any]:
        """The position, as JSON."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        ...


@dataclass(frozen=True)
class Validation:
    """How well the model does on the validation data."""

    nats_per_token: float | None
    """Average surprisal of a token; None where no text is predicted."""
    bits_per_byte: float | None
    """The same per byte of text, where there is one."""
    num_tokens: int
    """How many tokens it was measured on."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The task's own figures by name (accuracy, F1, BLEU), the higher the better. The first decides
    which model is the best; where there are none, the surprisal does.
    """
    by_surprisal: bool = False
    """Whether the surprisal decides all the same, and the figures are only told."""

    @property
    def criterion(self) -> float:
        """What the best model has least of."""
        for value in () if self.by_surprisal else self.metrics.values():
            return -value
        assert self.nats_per_token is not None, "a task without a metric predicts text"
        return self.nats_per_token

    def to_dict(self) -> dict[str, Any]:
        """As the header of the model file has it."""
        told = (
            "nats_per_token",
            "bits_per_byte",
            "num_tokens",
            *(["metrics"] * bool(self.metrics)),
        )
        return {name: value for name, value in asdict(self).items() if name in told}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, on what, and how it is judged."""

    model: nn.Module
    """On its device already."""
    objective: Callable[[Any, State | None], Outcome]
    """One of `batches` and the state before it (None: the initial one) become a loss."""
    regime: Regime | None = None
    """What the objective follows, where it wants to know how far training is, or has a judge to be
    trained beside the model.
    """
    thawing: Thawing | None = None
    """Parts of the model that begin to learn one after the other, at rates of their own."""
    batches: Batches
    """The training data."""
    validate: Callable[[int | None], Validation]
    """Judge the model on the first so many validation tokens (None: on all)."""
    valid_tokens: int
    """How many validation tokens there are."""
    probe: Callable[[], int]
    """Put one validation batch through, and say how many tokens that was."""
    test_tokens: int = 0
    """How many tokens will be evaluated after the loop: time is reserved for them."""
    sample: Callable[[int], str] | None = None
    """Generate text, from a seed."""
    exact: bool = True
    """Whether the loss is the likelihood of a text, whose exponential is a perplexity."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Written into the header of the model file."""


@dataclass
class Progress:
    """Where the run stands: what a checkpoint holds besides tensors."""

    step: int = 0
    tokens: int = 0
    valid_losses: list[float] = field(default_factory=list)
    """The criterion of each validation: a loss, or a metric with its sign turned."""
    validated_step: int = -1
    update_seconds: float = 0.0
    valid_limit: int | None = None
    """The part of the validation text that is used, decided once: losses must be comparable."""

    @property
    def best(self) -> float:
        """The lowest criterion so far."""
        return min(self.valid_losses, default=math.inf)

    @property
    def num_waiting(self) -> int:
        """Validations since the best one."""
        return (
            len(self.valid_losses) - 1 - self.valid_losses.index(self.best)
            if self.valid_losses
            else 0
        )


def fit(
    task: Task,
    optimiser: OptimiserConfig,
    schedule: ScheduleConfig,
    training: TrainingConfig,
    folder: Path,
    *,
    resume: bool = False,
    clock: Callable[[], float] = time.monotonic,
    started: float | None = None,
) -> Iterator[Report]:
    """Train; the best model is `folder`/model.safetensors. `started` is the clock when the run
    began.

    The last report has kind "stopped" where a signal ended the run before its time.
    """
    started = clock() if started is None else started
    yield from _Loop(task, optimiser, schedule, training, folder, resume, clock, started).reports()


class _Loop:
    def __init__(
        self,
        task: Task,
        optimiser: OptimiserConfig,
        schedule: ScheduleConfig,
        training: TrainingConfig,
        folder: Path,
        resume: bool,
        clock: Callable[[], float],
        started: float,
    ) -> None:
        self.task = task
        self.model = task.model
        self.optimiser_config = optimiser
        self.schedule = schedule
        self.training = training
        self.folder = folder
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.judge = task.regime.judge if task.regime is not None else None
        if self.judge is not None:
            named |= {f"judge.{name}": p for name, p in self.judge.named_parameters()}
        self.parameters = list(named.values())
        self.device = self.parameters[0].device
        self.optimiser = build(optimiser, self.parameters, task.thawing)
        self.graphed: GraphedUpdate | None = None
        if (
            self.device.type == "cuda"
            and training.cuda_graph
            and isinstance(task.model, LanguageModel)
            and (task.regime is None or task.regime.is_teacher_forcing)
        ):
            self.graphed = GraphedUpdate(self._advance, task.model.initial_state, self.device)
        self.average: Average | None = None
        self.meter = Meter(named, training.clip_norm)
        self.budget = Budget(training, task.batches.tokens_per_epoch, clock=clock, started=started)
        self.progress = Progress()
        self.state: State | None = None
        self.learning_rate = 0.0
        self.validation_seconds = 0.0
        self.evaluation_rate = math.inf
        self.saving_seconds = 0.0
        self.resumed = resume and (folder / STATE_FILE).exists()
        metrics_bytes = self._restore() if self.resumed else 0
        self.log = MetricsLog(folder / METRICS_FILE, keep_bytes=metrics_bytes)
        self.board = (
            TensorBoardLog(folder / "tensorboard", self.progress.step)
            if training.tensorboard
            else None
        )

    # The course of a run

    def reports(self) -> Iterator[Report]:
        """Train from where things stand to the end of the budget."""
        with ExitStack() as stack:
            stack.callback(self.log.close)
            stack.callback(memory.release)
            if self.board is not None:
                stack.callback(self.board.close)
            interrupt = stack.enter_context(Interrupt())
            note = self._probe()
            if not self.resumed:
                self._save_model(None)
            self._expect_end()
            self.budget.begin(self.progress.step, self.progress.tokens)
            if self.resumed:
                yield self._report(
                    "resume", log=False, note=f"continuing after step {self.progress.step}"
                )
            else:
                yield self._report("start", note=note)
            yield from self._updates(interrupt)
            if interrupt.requested:
                self._checkpoint()
                yield self._report(
                    "stopped", note=f"{interrupt.requested}: saved; --resume continues"
                )
                return
            self.meter.settle()
            if self.meter.num_steps:
                yield self._report("step", **self.meter.figures())
            if self.progress.validated_step != self.progress.step:
                yield self._validate()
            self._checkpoint()

    def _is_over(self, interrupt: Interrupt, step_seconds: float) -> bool:
        return (
            interrupt.requested is not None
            or 0 < self.training.patience <= self.progress.num_waiting
            or self.budget.is_over(self.progress.step, self.task.batches.epoch, step_seconds)
        )

    def _updates(self, interrupt: Interrupt) -> Iterator[Report]:
        progress, budget = self.progress, self.budget
        reported, tokens_then = budget.seconds(), progress.tokens
        checkpointed = reported
        step_seconds = 0.0
        while not self._is_over(interrupt, step_seconds):
            epoch = self.task.batches.epoch
            before = budget.seconds()
            self._update()
            step_seconds = budget.seconds() - before
            if progress.step % self.training.report_every == 0:
                self.meter.settle()
                passed = max(1e-9, budget.seconds() - reported)
                progress.update_seconds += passed
                rate = (progress.tokens - tokens_then) / passed
                yield self._report("step", tokens_per_second=rate, **self.meter.figures())
                reported, tokens_then = budget.seconds(), progress.tokens
            epoch_ended = self.task.batches.epoch != epoch
            if budget.wants_validation(progress.step, epoch_ended, self.validation_seconds):
                before = budget.seconds()
                yield self._validate()
                reported += budget.seconds() - before
            if budget.seconds() - checkpointed >= self.training.checkpoint_seconds:
                before = budget.seconds()
                self._checkpoint()
                checkpointed = budget.seconds()
                reported += checkpointed - before
        self.meter.settle()
        progress.update_seconds += budget.seconds() - reported

    def _update(self) -> None:
        """One step of training."""
        epoch = self.task.batches.epoch  # before the batch: its last one ends it
        batch = next(self.task.batches)
        num_tokens, num_targets = batch.num_tokens, batch.num_targets
        self._set_learning_rate(epoch, batch)
        if self.task.thawing is not None and self.task.thawing.at(
            self.progress.tokens / self.task.batches.tokens_per_epoch
        ):
            self.meter.settle()  # norms so far are those of the parameters that learnt so far
        state = None if batch.fresh else self.state
        if self.task.regime is not None:
            self.task.regime.progress = self._done()
        moved = batch.to(str(self.device))
        if self.graphed is not None and isinstance(moved, Batch):  # lanes: shapes come again
            figures, self.state = self.graphed(moved, state)
        else:
            figures, self.state = self._advance(moved, state)
        if self.average is not None:
            self.average.update()
        self.progress.step += 1
        self.progress.tokens += num_tokens
        self.meter.add(self.progress.step, num_targets, *figures)

    def _advance(self, batch: TaskBatch, state: State | None) -> tuple[Figures, State | None]:
        """Forward, backward, clip, update: the device's part of a step, which nobody awaits.

        Returns the sum of the losses, the norm of the gradient, each parameter's own, and the
        state to go on from.
        """
        num_targets = batch.num_targets
        self.optimiser.zero_grad(set_to_none=True)
        nats = torch.zeros((), device=self.device)
        states = []
        for part, before in _parts(batch, state, self.training.accumulate):
            with self._precision():
                outcome = self.task.objective(part, before)
            share = outcome.num_targets / num_targets
            loss = outcome.loss if share == 1 else outcome.loss * share
            loss.backward()  # type: ignore[no-untyped-call]
            nats = nats + outcome.nats
            if outcome.state is not None:
                states.append(outcome.state.detach())
        norm, norms_P = clip(self.parameters, self.training.clip_norm)
        self.optimiser.step()
        return (nats, norm, norms_P), State.cat(states) if len(states) > 1 else next(
            iter(states), None
        )

    def _set_learning_rate(self, epoch: int, batch: TaskBatch) -> None:
        factor = rate_factor(
            self.schedule,
            progress=self._done(),
            step=self.progress.step,
            epoch=epoch,
            valid_losses=self.progress.valid_losses,
        )
        self.learning_rate = self.optimiser_config.learning_rate * factor
        if self.training.vary_chunks and isinstance(batch, Batch):
            # The loss is a mean over the chunk: else a short chunk's tokens would weigh more.
            factor *= batch.targets_BT.shape[1] / self.training.chunk_length
        for group in self.optimiser.param_groups:
            share = group.get("share", 1.0)
            set_rate(group, self.optimiser_config.learning_rate * factor * share)

    def _done(self) -> float:
        return self.budget.progress(self.progress.step, self.progress.tokens)

    def _precision(self) -> Any:
        if self.training.precision == "bf16":
            # No cache: it would keep tensors of a CUDA graph beyond the graph.
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)
        return nullcontext()

    # Validation

    def _probe(self) -> str | None:
        """Two validation batches before anything else: mistakes surface in seconds, and speed is
        known.
        """
        self.model.eval()
        for _ in range(2):  # the first pays for warming up, the second is timed
            before = self.budget.seconds()
            num_tokens = self.task.probe()
            self.evaluation_rate = num_tokens / max(1e-6, self.budget.seconds() - before)
        before = self.budget.seconds()
        self._sample()
        sampling_seconds = self.budget.seconds() - before
        self.model.train()
        limit = self.budget.most_tokens(ONE_VALIDATION_SHARE, self.evaluation_rate)
        note = None
        if not self.resumed and limit is not None and limit < self.task.valid_tokens:
            self.progress.valid_limit = limit
            note = (
                f"validation uses its first {limit:,} tokens: more would not fit into the minutes"
            )
        num_tokens = self.progress.valid_limit or self.task.valid_tokens
        self.validation_seconds = num_tokens / self.evaluation_rate + sampling_seconds
        return note

    def _sample(self) -> str | None:
        if self.task.sample is None or not self.training.sample_length:
            return None
        return self.task.sample(self.training.seed + self.progress.step)

    def _expect_end(self) -> None:
        self.budget.expect_end(
            validation=self.validation_seconds,
            test=self.task.test_tokens / self.evaluation_rate,
            saving=2 * self.saving_seconds,
        )

    def _validate(self) -> Report:
        """Judge the model (its average, where there is one), keep it if it is the best, show a
        sample.
        """
        self.meter.settle()
        progress = self.progress
        before = self.budget.seconds()
        self.model.eval()
        with nullcontext() if self.average is None else self.average.applied():
            found = self.task.validate(progress.valid_limit)
            loss, criterion = found.nats_per_token, found.criterion
            if not math.isfinite(criterion):
                raise diverged(progress.step, criterion, [], [])
            self.evaluation_rate = found.num_tokens / max(1e-6, self.budget.seconds() - before)
            sample = self._sample()
            self.validation_seconds = self.budget.seconds() - before
            best = criterion < progress.best
            if best:
                self._save_model(found)
        self.model.train()
        progress.valid_losses.append(criterion)
        progress.validated_step = progress.step
        self.budget.validated()
        self._expect_end()
        return self._report(
            "valid",
            valid_loss=loss,
            valid_perplexity=None if loss is None else perplexity(loss),
            valid_bits_per_byte=found.bits_per_byte,
            valid_metrics=dict(found.metrics) or None,
            best=best,
            sample=sample,
            note=self._turn(),
        )

    def _turn(self) -> str | None:
        """What this validation changes, as a sentence."""
        losses = self.progress.valid_losses
        if 0 < self.training.patience <= self.progress.num_waiting:
            waited = counted(self.progress.num_waiting, "validation")
            return f"stopping early: {waited} without improvement"
        if self.average is None and averaging_starts(self.optimiser_config, losses):
            self.average = Average(self.parameters)
            return "validation stopped improving: from here on the weights are averaged"
        return None

    def _report(self, kind: str, *, log: bool = True, **figures: Any) -> Report:
        progress = self._done()
        if not self.task.exact:
            figures.pop("perplexity", None)
        report = Report(
            kind=kind,
            step=self.progress.step,
            epoch=self.task.batches.epoch,
            tokens=self.progress.tokens,
            learning_rate=self.learning_rate,
            seconds=self.budget.seconds(),
            progress=progress,
            seconds_left=self.budget.seconds_left(progress),
            **figures,
        )
        if log:
            self.log.write(report)
            if self.board is not None:
                self.board.write(report)
        return report

    # The run folder

    def _save_model(self, found: Validation | None) -> None:
        """Write model.safetensors; its header says how good it is."""
        before = self.budget.seconds()
        header = {**self.task.about, "step": self.progress.step}
        if found is not None:
            header["validation"] = found.to_dict()
        checkpoint.write(self.folder / MODEL_FILE, self.model.state_dict(), header)
        self.saving_seconds = max(self.saving_seconds, self.budget.seconds() - before)

    def _checkpoint(self) -> None:
        """Write the train state; what is not finite is noticed before it gets there."""
        self.meter.settle()
        if not self.progress.valid_losses:
            self._save_model(None)
        before = self.budget.seconds()
        tensors, header = self._snapshot()
        checkpoint.write(self.folder / STATE_FILE, tensors, header)
        self.saving_seconds = max(self.saving_seconds, self.budget.seconds() - before)

    def _snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        groups = {
            "model": self.model.state_dict(),
            "optimiser": checkpoint.optimiser_tensors(self.optimiser),
            "random": checkpoint.random_tensors(self.device),
            "carried": {} if self.state is None else self.state.flatten(),
            "average": {} if self.average is None else self.average.state_dict(),
            "judge": {} if self.judge is None else self.judge.state_dict(),
        }
        header = {
            "format": STATE_FORMAT,
            "progress": asdict(self.progress),
            "batches": self.task.batches.state_dict(),
            "meter": self.meter.state_dict(),
            "seconds": self.budget.seconds(),
            "began": self.budget.began,
            "evaluation_rate": self.evaluation_rate,
            "metrics_bytes": self.log.num_bytes,
        }
        flat = {
            f"{group}.{name}": t for group, tensors in groups.items() for name, t in tensors.items()
        }
        return flat, header

    def _restore(self) -> int:
        """Take up a train state; return how many bytes of metrics.jsonl belong to it."""
        path = self.folder / STATE_FILE
        tensors, header = checkpoint.read(path)
        if header.get("format") != STATE_FORMAT:
            raise ElmanError(
                f"{path} was written by another version (format {header.get('format')})",
                "resume it with that version, or start a new run",
            )
        groups = checkpoint.grouped(tensors)
        checkpoint.load_weights(self.model, groups["model"], path)
        if self.judge is not None:
            checkpoint.load_weights(self.judge, groups["judge"], path)
        checkpoint.load_optimiser(self.optimiser, groups.get("optimiser", {}))
        checkpoint.load_random(groups["random"], self.device)
        if "carried" in groups:
            self.state = State.unflatten(groups["carried"]).to(self.device)
        if "average" in groups:
            self.average = Average(self.parameters)
            self.average.load_state_dict(groups["average"])
        self.progress = Progress(**header["progress"])
        self.task.batches.load_state_dict(header["batches"])
        self.meter.load_state_dict(header["meter"])
        self.budget.resume(header["seconds"], header["began"])
        return int(header["metrics_bytes"])


def _parts(
    batch: TaskBatch, state: State | None, num_parts: int
) -> Iterator[tuple[TaskBatch, State | None]]:
    """The batch and its state as `num_parts` groups of rows: small enough for memory, one after
    another.
    """
    if num_parts == 1:
        yield batch, state
        return
    ends = [batch.num_rows * part // num_parts for part in range(num_parts + 1)]
    for start, end in pairwise(ends):
        if start < end:  # a last, small batch may have fewer rows than there are parts
            rows = slice(start, end)
            yield batch.rows(rows), None if state is None else state.select(rows)
