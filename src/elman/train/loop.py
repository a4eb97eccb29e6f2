"""The training loop: a generator that yields reports.

One loop trains every task. It works on a `Trainable`: a model, an objective that turns a batch and
the carried state into a loss, an endless source of batches, and a way to validate. Truncated
backpropagation means that the loop passes a detached state to the next batch; tasks with
independent sentences carry none.

The caller of the generator prints, plots or stops. The loop itself writes three files into the run
folder: metrics.jsonl, the best model, and the train state. `_snapshot` has everything that resuming
needs: a run that is killed and resumed has the same losses as one that was not.

Of several processes (`train/ranks.py`), the leader runs the loop; the others call `follow` and do
what it orders.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.base.counting import counted
from elman.base.documents import intact
from elman.base.errors import ElmanError
from elman.nn.state import State
from elman.train import checkpoint
from elman.train.averages import Averages, averaging_starts, stopped_falling
from elman.train.budget import ONE_VALIDATION_SHARE, Budget, Progress
from elman.train.files import METRICS_FILE, MODEL_FILE, STATE_FILE
from elman.train.gradients import MOST_NATS, Meter, diverged, perplexity
from elman.train.interrupt import Interrupt
from elman.train.optimisers import OptimiserConfig
from elman.train.ranks import ALONE, Order, Own, Ranks, random_group, seed_of
from elman.train.report import NOT_RECURRENT, MetricsLog, Report, TensorBoardLog
from elman.train.saving import Saving
from elman.train.schedules import ScheduleConfig, rate_factor
from elman.train.trainable import StatefulObjective, Trainable, Validation
from elman.train.training_config import TrainingConfig
from elman.train.updating import Updater

STATE_FORMAT = 1
UPDATES = "updates"
"""The name of whole updates among the kernels."""

Watch = Callable[[], AbstractContextManager[Mapping[str, str]]]
"""Opens a context whose mapping names, after it is closed, the kernel that computed each part."""


def fit(
    trainable: Trainable,
    optimiser: OptimiserConfig,
    schedule: ScheduleConfig,
    training: TrainingConfig,
    folder: Path,
    *,
    resume: bool = False,
    clock: Callable[[], float] = time.monotonic,
    started: float | None = None,
    watch: Watch | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[Report]:
    """Train, and save the best model as `folder`/model.safetensors.

    `started` is the clock's reading at the start of the run. If a signal ends the run early, the
    last report has kind "stopped". `watch` surrounds the first update; a report of kind "note" and
    the train state's header ("kernels") then name the kernels that ran. With several `ranks`, this
    is for the leader, and the other processes call `follow`.
    """
    started = clock() if started is None else started
    budget = Budget(training, trainable.batches.tokens_per_epoch, clock=clock, started=started)
    loop = _Loop(trainable, optimiser, schedule, training, folder, budget, resume, watch, ranks)
    yield from loop.reports()
    ranks.order(Order.END)


def follow(
    trainable: Trainable,
    optimiser: OptimiserConfig,
    schedule: ScheduleConfig,
    training: TrainingConfig,
    ranks: Ranks,
) -> None:
    """Train as the leader of `ranks` orders, without a run folder."""
    num_tokens, clock = trainable.batches.tokens_per_epoch, time.monotonic
    budget = Budget(training, num_tokens, clock=clock, started=clock())
    where = Path(os.devnull)
    _Loop(trainable, optimiser, schedule, training, where, budget, False, None, ranks).follow()


@dataclass
class _Loop:
    trainable: Trainable
    optimiser_config: OptimiserConfig
    schedule: ScheduleConfig
    training: TrainingConfig
    folder: Path
    budget: Budget
    resume: bool
    watch: Watch | None
    ranks: Ranks

    def __post_init__(self) -> None:
        trainable, training, folder = self.trainable, self.training, self.folder
        self.model = trainable.model
        self.kernels: dict[str, str] = {}
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        objective = trainable.objective
        self.following = objective if isinstance(objective, StatefulObjective) else None
        self.random: dict[str, Mapping[str, Tensor]] = {}
        """The random generators of all processes, in a train state that was loaded."""
        self.modules = {} if self.following is None else dict(self.following.modules())
        for module_name, module in self.modules.items():
            named |= {f"{module_name}.{name}": p for name, p in module.named_parameters()}
        self.parameters = list(named.values())
        self.device = self.parameters[0].device
        config = self.optimiser_config
        self.updater = Updater(trainable, self.parameters, config, training, self.ranks)
        self.averages = Averages(self.parameters, config)
        if config.averaging in ("exponential", "two_tailed") and self.ranks.is_leader:
            self.averages.start()
        self.saving = Saving(folder, self.budget.seconds)
        self.meter = Meter(named, training.clip_norm)
        self.progress = Progress()
        self.state: State | None = None
        """Of the rows of this process."""
        self.validation_seconds = 0.0
        self.evaluation_rate = math.inf
        self.resumed = self.resume and (folder / STATE_FILE).exists()
        kept = self._restore() if self.resumed else 0
        if self.ranks.size > 1:
            self._begin_together()
        if not self.ranks.is_leader:
            return
        self.log = MetricsLog(folder / METRICS_FILE, keep_bytes=kept)
        self.logs: list[MetricsLog | TensorBoardLog] = [self.log]
        if training.tensorboard:
            self.logs.append(TensorBoardLog(folder / "tensorboard", self.progress.step))

    def reports(self) -> Iterator[Report]:
        """Train to the end of the budget."""
        with ExitStack() as stack:
            for log in self.logs:
                stack.callback(log.close)
            stack.enter_context(self.updater.running())
            stack.callback(self.saving.rest)
            interrupt = stack.enter_context(Interrupt())
            self.ranks.interrupt = interrupt
            note = self._probe()
            if not self.resumed:
                self._save_model(None)
            self._expect_end()
            self.budget.begin(self.progress.step, self.progress.tokens)
            if self.resumed:
                note = f"continuing after step {self.progress.step:,}"
                factor = self._factor(self._done())
                self.updater.learning_rate = self.optimiser_config.learning_rate * factor
                yield self._report("resume", log=False, note=note)
            else:
                reports = [self._report("start", note=note)]
                if self.trainable.has_learnt:
                    reports.append(self._validate())
                # From now on a missing train state means that it was lost.
                self.saving.write(STATE_FILE, *self._snapshot())
                yield from reports
            yield from self._updates(interrupt)
            if interrupt.requested:
                self._checkpoint()
                yield self._report("stopped", note=f"{interrupt.what} and saved")
                return
            self.meter.settle()
            if self.meter.num_steps:
                yield self._report("step", **self.meter.figures())
            if self.progress.validated_step != self.progress.step:
                yield self._validate()
            self._checkpoint()

    def follow(self) -> None:
        """Do what the leader orders, until the end."""
        with ExitStack() as stack:
            stack.enter_context(self.updater.running())
            self.ranks.interrupt = stack.enter_context(Interrupt())
            self.model.train()
            while True:
                order, done, factor = self.ranks.next_order()
                if order is Order.UPDATE:
                    self._carry_out(done, factor)
                elif order is Order.COLLECT:
                    self._collect()
                elif order is Order.RESTART:
                    self._receive_restart()
                else:
                    return

    def _begin_together(self) -> None:
        """Give all processes the leader's weights and position, and each its rows and random
        numbers.
        """
        tensors, header = self.ranks.from_leader(self._start)
        if not self.ranks.is_leader:
            self._load(checkpoint.grouped(tensors), header, self.folder)
        if self.state is not None:
            self.state = self.state.select(self.ranks.rows(self.state.batch_size))

    def _start(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the other processes start from."""
        tensors = checkpoint.flat(self._groups([self._own()]) | self.random)
        return {name: tensor.cpu() for name, tensor in tensors.items()}, self._position(0)

    def _is_over(self, interrupt: Interrupt, step_seconds: float) -> bool:
        return (
            interrupt.requested is not None
            or 0 < self.training.patience <= self.progress.num_waiting
            or self.progress.is_tuned
            or self.budget.is_over(self.progress.step, self.trainable.batches.epoch, step_seconds)
        )

    def _updates(self, interrupt: Interrupt) -> Iterator[Report]:
        progress, budget = self.progress, self.budget
        reported, tokens_then = budget.seconds(), progress.tokens
        checkpointed = reported
        step_seconds = 0.0
        while not self._is_over(interrupt, step_seconds):
            epoch = self.trainable.batches.epoch
            before = budget.seconds()
            if self.watch is None:
                self._update()
            else:
                yield self._watched_update(self.watch)
                self.watch = None
            step_seconds = budget.seconds() - before
            if (told := self.updater.drop_graphs()) is not None:
                yield self._report("note", note=f"updates are {told}")
                self.kernels[UPDATES] = told
            if progress.step % self.training.report_every == 0:
                self.meter.settle()
                passed = max(1e-9, budget.seconds() - reported)
                progress.update_seconds += passed
                rate = (progress.tokens - tokens_then) / passed
                yield self._report("step", tokens_per_second=rate, **self.meter.figures())
                reported, tokens_then = budget.seconds(), progress.tokens
            epoch_ended = self.trainable.batches.epoch != epoch
            if budget.wants_validation(
                progress,
                epoch_ended,
                self._valid_tokens,
                self.validation_seconds,
                1 if self.averages.later is None else 2,
            ):
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

    def _watched_update(self, watch: Watch) -> Report:
        is_logged = self.progress.step > 0  # by the run that this one resumes
        with watch() as kernels:
            self._update()
        self.kernels = dict(kernels)
        names = "; ".join(f"{part}: {kernel}" for part, kernel in self.kernels.items())
        return self._report("note", log=not is_logged, note=f"kernels: {names or NOT_RECURRENT}")

    def _factor(self, done: float) -> float:
        """By what the learning rate of the next update is scaled, `done` with the run so far."""
        return rate_factor(
            self.schedule,
            progress=done,
            step=self.progress.step,
            epoch=self.trainable.batches.epoch,
            valid_losses=self.progress.valid_losses,
        )

    def _update(self) -> None:
        done = self._done()
        factor = self._factor(done)
        self.ranks.order(Order.UPDATE, done, factor)
        self._carry_out(done, factor)

    def _carry_out(self, done: float, factor: float) -> None:
        """Compute an update, `done` with the run so far, at `factor` times the learning rate."""
        batches = self.trainable.batches
        batch = next(batches)
        self.updater.set_learning_rate(factor, batch)
        epochs = self.progress.tokens / batches.tokens_per_epoch
        unfreezing = self.trainable.unfreezing
        if unfreezing is not None and unfreezing.begin_update(epochs):
            self.meter.settle()  # the norms so far belong to the parameters trained so far
        if self.following is not None:
            self.following.begin_update(done)
        state = None if batch.fresh else self.state
        figures, self.state = self.updater.update(batch, state)
        self.progress.step += 1
        self.averages.update(self.progress.step)
        self.progress.tokens += batch.num_tokens
        if self.ranks.is_leader:
            self.meter.add(self.progress.step, batch.num_targets, *figures)

    def _done(self) -> float:
        return self.budget.progress(self.progress.step, self.progress.tokens)

    def _probe(self) -> str | None:
        """Run two validation batches to find mistakes early and to measure the speed.

        Returns a note if validation has to be cut to fit into the minutes.
        """
        self.model.eval()
        for _ in range(2):  # the first is a warm-up, the second is timed
            before = self.budget.seconds()
            num_tokens = self.trainable.probe()
            self.evaluation_rate = num_tokens / max(1e-6, self.budget.seconds() - before)
        before = self.budget.seconds()
        self._sample()
        sampling_seconds = self.budget.seconds() - before
        self.model.train()
        limit = self.budget.most_tokens(ONE_VALIDATION_SHARE, self.evaluation_rate)
        note = None
        if not self.resumed and limit is not None and limit < self.trainable.valid_tokens:
            self.progress.valid_limit = limit
            note = (
                f"validation uses its first {limit:,} tokens: more would not fit into the minutes"
            )
        self.validation_seconds = self._num_validated() / self.evaluation_rate + sampling_seconds
        return note

    def _num_validated(self) -> int:
        """Tokens that a validation reads: of two averages, each reads all."""
        return self._valid_tokens * (1 if self.averages.later is None else 2)

    @property
    def _valid_tokens(self) -> int:
        return self.progress.valid_limit or self.trainable.valid_tokens

    def _sample(self) -> str | None:
        sample = self.trainable.sample
        return None if sample is None else sample(self.training.seed + self.progress.step)

    def _expect_end(self) -> None:
        self.budget.expect_end(
            validation=self.validation_seconds,
            test=(self.trainable.test_tokens + self.trainable.closing_tokens)
            / self.evaluation_rate,
            saving=2 * self.saving.longest,
        )

    def _validate(self) -> Report:
        """Validate the model (or its average), save it if it is the best, generate a sample."""
        self.meter.settle()
        progress = self.progress
        before, saved = self.budget.seconds(), self.saving.taken
        self.model.eval()
        found = self.averages.measured(self._measure)
        loss, criterion = found.nats_per_token, found.criterion
        with self.averages.applied():
            sample = self._sample() if self.budget.wants_sample(progress) else None
            ranked = (criterion, loss or 0.0)
            best = ranked < (progress.best, progress.best_loss)
            if best:
                self._save_model(found)
                progress.best_loss = ranked[1]
        self.validation_seconds = self.budget.seconds() - before
        saved = self.saving.taken - saved
        progress.validation_seconds += self.validation_seconds - saved
        self.model.train()
        progress.valid_losses.append(criterion)
        progress.validated_step, progress.validated_tokens = progress.step, progress.tokens
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
            note=self._consequence(),
        )

    def _measure(self) -> Validation:
        """Validate the model as it is; raise an error if it has diverged."""
        before = self.budget.seconds()
        found = self.trainable.validate(self.progress.valid_limit)
        value = found.criterion if found.nats_per_token is None else found.nats_per_token
        if not (math.isfinite(found.criterion) and value <= MOST_NATS):
            raise diverged(self.progress.step, value, [], [])
        self.evaluation_rate = found.num_tokens / max(1e-6, self.budget.seconds() - before)
        return found

    def _consequence(self) -> str | None:
        """Start averaging if the last validation calls for it; return a note on what changes."""
        progress, config = self.progress, self.optimiser_config
        losses = progress.valid_losses
        if 0 < self.training.patience <= self.progress.num_waiting:
            waited = counted(self.progress.num_waiting, "validation")
            return f"stopping early: {waited} without improvement"
        if self.averages.best is None:
            if not averaging_starts(config, losses):
                return None
            self.averages.start()
            progress.averaged_from = len(losses)
            return "validation stopped improving: from here on the weights are averaged"
        if not config.restarts:
            return None
        is_flat = stopped_falling(losses[progress.averaged_from :], config.non_monotone_interval)
        if progress.num_restarts == config.restarts:
            progress.is_tuned = is_flat
            return "stopping early: fine-tuning stopped improving" if is_flat else None
        if not is_flat and self._done() < (progress.num_restarts + 1) / (config.restarts + 1):
            return None
        self._restart()
        return "fine-tuning: going on from the best average, with a new one"

    @torch.no_grad()
    def _restart(self) -> None:
        """Give the model the best weights, and forget the average and the optimiser's memory."""
        assert self.averages.best is not None
        self.saving.rest()
        tensors, _ = checkpoint.read(self.folder / MODEL_FILE)
        checkpoint.load_weights(self.model, tensors, self.folder / MODEL_FILE)
        self.ranks.order(Order.RESTART)
        self._receive_restart()
        self.averages.best.restart()
        self.progress.num_restarts += 1
        self.progress.averaged_from = len(self.progress.valid_losses)

    @torch.no_grad()
    def _receive_restart(self) -> None:
        self._send_weights()
        self.updater.forget()

    @torch.no_grad()
    def _send_weights(self) -> None:
        """Give all processes the leader's weights."""
        self.ranks.send_tensors([p.data for p in self.parameters])

    def _report(self, kind: str, *, log: bool = True, **figures: Any) -> Report:
        progress = self._done()
        if not self.trainable.exact:
            figures.pop("perplexity", None)
        report = Report(
            kind=kind,
            step=self.progress.step,
            epoch=self.trainable.batches.epoch,
            tokens=self.progress.tokens,
            learning_rate=self.updater.learning_rate,
            seconds=self.budget.seconds(),
            progress=progress,
            seconds_left=self.budget.seconds_left(progress),
            **figures,
        )
        for each in self.logs if log else ():
            each.write(report)
        return report

    def _save_model(self, found: Validation | None) -> None:
        """Write model.safetensors with the validation result in its header."""
        header = {**self.trainable.about, "step": self.progress.step}
        if found is None:
            self.saving.model(self.model.state_dict(), header)
        else:
            header["validation"] = found.to_dict()
            passed = self.budget.seconds() - self.budget.validated_at
            self.saving.best_model(self.model.state_dict(), header, passed)

    def _checkpoint(self) -> None:
        """Write the train state; `settle` stops the run first if a loss is not finite."""
        self.meter.settle()
        if not self.progress.valid_losses:
            self._save_model(None)
        self.saving.rest()
        self.saving.write(STATE_FILE, *self._snapshot())

    def _snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.ranks.order(Order.COLLECT)
        groups = self._groups(self._collect())
        groups |= {name: average.state_dict() for name, average in self.averages.named().items()}
        return checkpoint.flat(groups), self._position(self.log.sync())

    def _groups(self, own: Sequence[Own]) -> dict[str, Mapping[str, Tensor]]:
        """The tensors of a train state but for averages; `own` is what processes have apart."""
        carried = own[0].carried
        if own[1:]:
            states = [State.unflatten(part.carried) for part in own if part.carried]
            carried = State.cat(states).flatten() if states else {}
        groups: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "optimiser": checkpoint.optimiser_tensors(self.updater.optimiser),
            **{random_group(rank): part.random for rank, part in enumerate(own)},
            "carried": carried,
        }
        assert not groups.keys() & self.modules.keys(), "names of the train state's own parts"
        return groups | {name: module.state_dict() for name, module in self.modules.items()}

    def _own(self) -> Own:
        """What the train state holds of this process alone."""
        carried = {} if self.state is None else self.state.flatten()
        return Own(carried, checkpoint.random_tensors(self.device))

    def _collect(self) -> list[Own]:
        """Return what the train state holds of each process, in the leader.

        Meanwhile all of them get the leader's weights: machines that round differently would drift
        apart.
        """
        self._send_weights()
        own = self._own()
        if self.ranks.size > 1:
            own = Own({name: tensor.cpu() for name, tensor in own.carried.items()}, own.random)
        return self.ranks.gather(own)

    def _position(self, metrics_bytes: int) -> dict[str, Any]:
        """Return what a train state holds besides tensors."""
        return {
            "format": STATE_FORMAT,
            "progress": asdict(replace(self.progress, saving_seconds=self.saving.taken)),
            "batches": self.trainable.batches.state_dict(),
            "meter": self.meter.state_dict(),
            "seconds": self.budget.seconds(),
            "began": self.budget.began,
            "evaluation_rate": self.evaluation_rate,
            "metrics_bytes": metrics_bytes,
            "kernels": self._executed(),
            "arithmetic": self.updater.arithmetic(),
            **({"ranks": self.ranks.size} if self.ranks.size > 1 else {}),
        }

    def _executed(self) -> dict[str, str]:
        """The kernels that ran, and how many updates were replayed from CUDA graphs."""
        graphed = self.updater.graphed
        graphs = {} if graphed is None else {UPDATES: graphed.describe()}
        return self.kernels | graphs

    def _restore(self) -> int:
        """Load a train state; return the number of bytes of metrics.jsonl that belong to it."""
        path = self.folder / STATE_FILE
        tensors, header = checkpoint.read(path)
        if header.get("format") != STATE_FORMAT:
            raise ElmanError(
                f"{path} was written by another version (format {header.get('format')})",
                "resume it with that version, or start a new run",
            )
        with intact(path, hint="start the run again, or restore the file from a copy"):
            checkpoint.check_alike(header, self._position(0))
            return self._load(checkpoint.grouped(tensors), header, path)

    def _load(
        self, groups: Mapping[str, Mapping[str, Tensor]], header: Mapping[str, Any], path: Path
    ) -> int:
        checkpoint.load_weights(self.model, groups["model"], path)
        for name, module in self.modules.items():
            checkpoint.load_weights(module, groups[name], path)
        unfreezing = self.trainable.unfreezing
        late = [p for group, _ in unfreezing.groups for p in group] if unfreezing else ()
        checkpoint.load_optimiser(self.updater.optimiser, groups.get("optimiser", {}), late)
        self._load_random(groups, header)
        if "carried" in groups:
            state = State.unflatten(groups["carried"]).to(self.device)
            if (initial_state := getattr(self.model, "initial_state", None)) is not None:
                initial = initial_state(self.training.batch_size)
                checkpoint.check_shapes(state.flatten(), initial.flatten())
            self.state = state
        if "average" in groups and self.averages.best is None:
            self.averages.start()
        for name, average in self.averages.named().items():
            checkpoint.check_shapes(groups[name], average.state_dict())
            average.load_state_dict(groups[name])
        self.progress = Progress(**header["progress"])
        self.saving.taken = self.progress.saving_seconds
        self.trainable.batches.load_state_dict(header["batches"])
        self.meter.load_state_dict(header["meter"])
        self.budget.resume(header["seconds"], header["began"])
        self.updater.restore_arithmetic(header.get("arithmetic", {}))
        self.kernels = {name: str(kernel) for name, kernel in header.get("kernels", {}).items()}
        return int(header["metrics_bytes"])

    def _load_random(
        self, groups: Mapping[str, Mapping[str, Tensor]], header: Mapping[str, Any]
    ) -> None:
        """Restore the random numbers of this process, or start new ones if the train state has none
        for it: the run began with fewer processes.
        """
        self.random = {name: group for name, group in groups.items() if name.startswith("random")}
        name = random_group(self.ranks.rank)
        if name in groups or self.ranks.is_leader:
            checkpoint.load_random(groups[name], self.device)
        else:
            step = int(header["progress"]["step"])
            torch.manual_seed(seed_of(self.training.seed, self.ranks.rank, step))
