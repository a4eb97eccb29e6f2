"""The loop: it learns, repeats, resumes exactly, stops when it must, and says so."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from elman.base.documents import read_json_lines
from elman.base.errors import ElmanError
from elman.models.recurrent import RecurrentLMConfig
from elman.nn.kernels import memory, mkl
from elman.train import checkpoint, saving, updating
from elman.train.loop import METRICS_FILE, MODEL_FILE, STATE_FILE
from elman.train.optimisers import OptimiserConfig
from elman.train.report import Report
from elman.train.schedules import ScheduleConfig
from elman.train.trainable import Validation
from elman.train.training_config import LaneTrainingConfig

CLOCKWORK = ("seconds", "seconds_left", "tokens_per_second")


def figures(reports: Iterable[Report]) -> list[dict[str, Any]]:
    """What must be the same in two runs: everything but the time."""
    return [
        {k: v for k, v in r.to_dict().items() if k not in CLOCKWORK}
        for r in reports
        if r.kind not in ("resume", "stopped")
    ]


def lines(folder: Path) -> list[dict[str, Any]]:
    found = read_json_lines(folder / METRICS_FILE)
    return [{k: v for k, v in line.items() if k not in CLOCKWORK} for line in found]


def saved(path: Path) -> dict[str, Tensor]:
    return checkpoint.read(path)[0]


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_it_learns(bench, floor) -> None:
    bench.change(steps=150, validate_every=50, report_every=50)
    reports = list(bench.fit())
    losses = [r.valid_loss for r in reports if r.kind == "valid"]
    assert losses[-1] < floor - 0.8
    assert losses == sorted(losses, reverse=True)


def test_reports_say_what_happened(bench) -> None:
    reports = list(bench.fit())
    assert [r.kind for r in reports] == [
        "start", "step", "step", "valid", "step", "step", "valid", "step", "step", "valid",
    ]  # fmt: skip
    step, valid = reports[2], reports[3]
    assert (step.step, step.tokens, step.epoch) == (10, 320, 0)
    assert step.perplexity == pytest.approx(math.exp(step.loss))
    assert step.progress == pytest.approx(1 / 3)
    assert 0 <= step.clip_rate <= 1
    assert step.gradient_norm > 0
    assert valid.valid_perplexity == pytest.approx(math.exp(valid.valid_loss))
    assert valid.sample == "sample 11"
    assert valid.best
    assert reports[-1].progress == 1.0
    assert lines(bench.folder / "run") == figures(reports)


def test_the_end_of_a_run_hands_memory_back(bench) -> None:
    room = memory.room(memory.SMALLEST_BYTES)
    del room
    assert memory._kept
    list(bench.fit())
    assert not memory._kept


def test_two_runs_with_one_seed_are_equal(bench) -> None:
    assert figures(bench.fit("one")) == figures(bench.fit("two"))
    assert same(saved(bench.folder / "one" / MODEL_FILE), saved(bench.folder / "two" / MODEL_FILE))
    bench.change(seed=2)
    assert figures(bench.fit("three"))[1:] != lines(bench.folder / "one")[1:]


VARIANTS: dict[str, dict[str, Any]] = {
    "adam": {},
    "momentum": {"optimiser": OptimiserConfig(kind="sgd", learning_rate=0.5, momentum=0.9)},
    "plateau": {
        "optimiser": OptimiserConfig(kind="sgd", learning_rate=2.0),
        "schedule": ScheduleConfig(kind="plateau", factor=0.5),
    },
    "averaging": {
        "optimiser": OptimiserConfig(kind="asgd", learning_rate=30.0, non_monotone_interval=0),
        "schedule": ScheduleConfig(kind="constant"),
        "training": {"validate_every": 3},
    },
    "exponential": {
        "optimiser": OptimiserConfig(average="exponential", average_decay=0.8, average_every=2)
    },
    "two tailed": {
        "optimiser": OptimiserConfig(kind="rmsprop", learning_rate=0.01, average="two_tailed"),
        "training": {"validate_every": 3, "shuffle_lanes": True},
    },
    "fine-tuning": {
        "optimiser": OptimiserConfig(
            kind="asgd", learning_rate=3.0, momentum=0.5, average_latest=2, restarts=2
        ),
        "training": {"validate_every": 3},
    },
    "varied chunks over epochs": {"training": {"steps": None, "epochs": 3, "vary_chunks": True}},
    "accumulated": {"training": {"accumulate": 2}},
    "bf16": {"training": {"precision": "bf16"}},
    "our own model": {
        "config": RecurrentLMConfig(
            hidden_size=8, embedding_size=8, weight_drop=0.3, dropout_embedding=0.1
        )
    },
}


@pytest.mark.parametrize(
    ("variant", "stop"), [("adam", 5), ("adam", 10), *((variant, 13) for variant in VARIANTS)]
)
def test_a_resumed_run_equals_an_uninterrupted_one(bench, variant: str, stop: int) -> None:
    if variant == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16 LSTM in oneDNN")
    changes = dict(VARIANTS[variant])
    bench.change(checkpoint_seconds=0.0, **changes.pop("training", {}))
    for name, value in changes.items():
        setattr(bench, name, value)
    whole = list(bench.fit("whole"))
    broken = bench.fit("broken")
    for report in broken:
        if report.step >= stop:
            break
    broken.close()  # as a crash would: nothing more is written
    assert (bench.folder / "broken" / STATE_FILE).exists()
    list(bench.fit("broken", resume=True))
    assert lines(bench.folder / "broken") == figures(whole)
    for file in (MODEL_FILE, STATE_FILE):
        assert same(saved(bench.folder / "whole" / file), saved(bench.folder / "broken" / file))
    if variant == "averaging":
        assert any(
            name.startswith("average") for name in saved(bench.folder / "whole" / STATE_FILE)
        )


@pytest.mark.parametrize("clip_decay", [False, True])
def test_the_first_update_by_hand(bench, clip_decay: bool) -> None:
    """Weight decay is clipped with the gradient, or added to what was clipped."""
    rate, decay, threshold = 0.5, 0.3, 0.01
    bench.dropout = 0.0
    bench.optimiser = OptimiserConfig(
        kind="sgd", learning_rate=rate, weight_decay=decay, clip_decay=clip_decay
    )
    bench.schedule = ScheduleConfig(kind="constant")
    bench.change(steps=1, validate_every=1, clip_norm=threshold)
    task = bench.task()
    before = parameters_to_vector(task.model.parameters()).detach()
    batch = next(iter(bench.task().batches))
    loss = task.objective(batch, task.model.initial_state(bench.training.batch_size)).loss
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, list(task.model.parameters()))]
    )
    gradient = gradient + decay * before if clip_decay else gradient
    step = gradient * threshold / gradient.norm()
    step = step if clip_decay else step + decay * before
    list(bench.fit(task=task))
    after = parameters_to_vector(task.model.parameters())
    torch.testing.assert_close(after, before - rate * step)


def test_resuming_a_run_that_has_no_checkpoint_yet_starts_it(bench) -> None:
    whole = list(bench.fit("whole"))
    broken = bench.fit("broken")
    next(broken)
    broken.close()
    list(bench.fit("broken", resume=True))
    assert lines(bench.folder / "broken") == figures(whole)


def test_a_finished_run_can_be_made_longer(bench) -> None:
    bench.schedule = ScheduleConfig(kind="constant")
    list(bench.fit("short"))
    bench.change(steps=50)
    list(bench.fit("short", resume=True))
    whole = list(bench.fit("whole"))
    assert [
        (r["step"], r.get("loss"), r.get("valid_loss")) for r in lines(bench.folder / "short")
    ] == [(r.step, r.loss, r.valid_loss) for r in whole]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_first(bench, number: signal.Signals) -> None:
    whole = list(bench.fit("whole"))
    reports = []
    for report in bench.fit("broken"):
        reports.append(report)
        if report.step == 15 and report.kind == "step":
            os.kill(os.getpid(), number)
    assert reports[-1].kind == "stopped"
    assert reports[-1].step == 15
    by = {signal.SIGINT: "Interrupted", signal.SIGTERM: "SIGTERM"}[number]
    assert by in reports[-1].note
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    list(bench.fit("broken", resume=True))
    assert lines(bench.folder / "broken") == figures(whole)


def test_accumulation_gives_the_gradient_of_the_whole_batch(bench) -> None:
    bench.dropout = 0.0  # it would draw other masks
    bench.optimiser = OptimiserConfig(kind="sgd", learning_rate=1.0)
    list(bench.fit("whole"))
    bench.change(accumulate=4)
    list(bench.fit("parts"))
    one, two = (saved(bench.folder / name / MODEL_FILE) for name in ("whole", "parts"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_clipping_bounds_the_update(bench) -> None:
    bench.optimiser = OptimiserConfig(kind="sgd", learning_rate=1.0)
    bench.schedule = ScheduleConfig(kind="constant")
    bench.change(steps=1, clip_norm=0.01, report_every=1)
    task = bench.task()
    before = parameters_to_vector(task.model.parameters()).detach()
    reports = list(bench.fit(task=task))
    moved = parameters_to_vector(task.model.parameters()).detach() - before
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-4)
    assert reports[1].clip_rate == 1.0


def broken_task(bench, at_step: int):
    """A task whose loss is not a number from the given step on."""
    task = bench.task()
    objective, calls = task.objective, []

    def breaking(batch, state):
        outcome = objective(batch, state)
        calls.append(1)
        if len(calls) < at_step:
            return outcome
        bad = torch.tensor(math.nan)
        return type(outcome)(
            outcome.loss * bad, outcome.nats * bad, outcome.num_targets, outcome.state
        )

    return bench.task(objective=breaking, model=task.model)


def test_a_nan_stops_the_run_and_spares_what_was_saved(bench) -> None:
    bench.change(checkpoint_seconds=0.0)
    with pytest.raises(ElmanError, match="step 13: the loss became nan") as caught:
        list(bench.fit(task=broken_task(bench, 13)))
    assert caught.value.hint
    tensors, header = checkpoint.read(bench.folder / "run" / STATE_FILE)
    assert header["progress"]["step"] == 12
    assert all(t.isfinite().all() for t in tensors.values())
    assert all(t.isfinite().all() for t in saved(bench.folder / "run" / MODEL_FILE).values())


def test_an_exploding_gradient_names_the_parameter(bench) -> None:
    task = bench.task()
    task.model.input.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(ElmanError, match=r"step 1: the gradient of input\.weight"):
        list(bench.fit(task=task))


def test_a_mistake_in_validation_surfaces_before_the_first_update(bench) -> None:
    def probe() -> int:
        raise ElmanError("broken")

    task = bench.task(probe=probe)
    with pytest.raises(ElmanError, match="broken"):
        next(bench.fit(task=task))
    assert task.batches.position == 0


def test_validation_happens_at_the_end_of_each_epoch(bench) -> None:
    bench.num_tokens = 1400
    bench.change(validate_every=0, epochs=2)
    valid = [r for r in bench.fit() if r.kind == "valid"]
    per_epoch = math.ceil(1400 // 4 / 8)
    assert [(r.step, r.epoch) for r in valid] == [(per_epoch, 1), (2 * per_epoch, 2)]


def test_the_rate_of_an_epoch_holds_to_its_last_batch(bench) -> None:
    bench.schedule = ScheduleConfig(kind="decay", decay_after=1, factor=0.5)
    bench.change(epochs=3, report_every=1)
    rates = [r.learning_rate for r in bench.fit() if r.kind == "step"]
    per_epoch = math.ceil(600 // 4 / 8)
    assert rates == [0.01] * per_epoch + [0.005] * per_epoch + [0.0025] * per_epoch


def test_it_stops_early_when_patience_ends(bench) -> None:
    bench.optimiser = OptimiserConfig(kind="sgd", learning_rate=1e-30)
    bench.change(patience=2, validate_every=5)
    reports = list(bench.fit())
    assert reports[-1].step == 15
    assert "stopping early" in reports[-1].note


def test_the_best_model_is_kept_not_the_last(bench, monkeypatch) -> None:
    monkeypatch.setattr(saving, "QUICK", math.inf)
    losses = iter([3.0, 1.0, 2.0])
    task = bench.task(validate=lambda limit: Validation(next(losses), 1.0, 200))
    kept = {}
    for report in bench.fit(task=task):
        if report.kind == "valid":
            kept[report.step] = (report.best, saved(bench.folder / "run" / MODEL_FILE))
    assert [best for best, _ in kept.values()] == [True, True, False]
    assert same(kept[20][1], kept[30][1])
    assert not same(kept[10][1], kept[20][1])
    header = checkpoint.read_header(bench.folder / "run" / MODEL_FILE)
    assert header["step"] == 20
    assert header["validation"]["nats_per_token"] == 1.0


def raw_weights(bench) -> list[Tensor]:
    """The weights after each update of a run without an average."""
    bench.optimiser = OptimiserConfig(kind="sgd", learning_rate=0.3)
    bench.schedule = ScheduleConfig(kind="constant")
    bench.change(steps=15, validate_every=1)
    seen: list[Tensor] = []
    task = bench.task()

    def validate(limit: int | None) -> Validation:
        seen.append(parameters_to_vector(task.model.parameters()).detach().clone())
        return Validation(1.0, 1.0, 200)

    list(
        bench.fit(
            "raw", task=bench.task(model=task.model, objective=task.objective, validate=validate)
        )
    )
    return seen


def test_of_two_tails_the_later_takes_over_when_it_is_as_good(bench) -> None:
    """Melis (2022): means of iterates 1-5; then of 1-10 and 6-10; then of 1-15 and 6-15 if the
    later was worse, of 6-15 and 11-15 if not."""
    weights = raw_weights(bench)

    def mean(first: int, last: int) -> Tensor:
        return torch.stack(weights[first - 1 : last]).mean(0)

    for later, tails in ((3.0, [(1, 15), (6, 15)]), (1.5, [(6, 15), (11, 15)])):
        # One validation at step 5, two at step 10 (long, short), two at step 15.
        losses = [2.0, 2.0, later, 2.0, 1.0]
        bench.folder = bench.folder.with_name(f"{bench.folder.name}-{later}")
        bench.optimiser = OptimiserConfig(kind="sgd", learning_rate=0.3, average="two_tailed")
        bench.change(steps=15, validate_every=5)
        seen: list[Tensor] = []
        given, task = iter(losses), bench.task()

        def validate(limit: int | None, seen=seen, given=given, task=task) -> Validation:
            seen.append(parameters_to_vector(task.model.parameters()).detach().clone())
            return Validation(next(given), 1.0, 200)

        list(
            bench.fit(
                "two",
                task=bench.task(model=task.model, objective=task.objective, validate=validate),
            )
        )
        for found, tail in zip(seen, [(1, 5), (1, 10), (6, 10), *tails], strict=True):
            torch.testing.assert_close(found, mean(*tail))


def test_fine_tuning_goes_on_from_the_best_average(bench) -> None:
    bench.optimiser = OptimiserConfig(
        kind="asgd", learning_rate=0.3, average_latest=1, non_monotone_interval=0, restarts=1
    )
    bench.schedule = ScheduleConfig(kind="constant")
    bench.change(steps=100, validate_every=5)
    # Raw; averages, of which the second is the best and the third starts fine-tuning; its
    # averages, of which the second ends the run.
    given, task = iter([5.0, 4.0, 3.0, 3.5, 3.2, 3.4]), bench.task()
    seen: list[Tensor] = []

    def validate(limit: int | None) -> Validation:
        seen.append(parameters_to_vector(task.model.parameters()).detach().clone())
        return Validation(next(given), 1.0, 200)

    notes, begun = [], None
    for report in bench.fit(
        task=bench.task(model=task.model, objective=task.objective, validate=validate)
    ):
        notes += [report.note] if report.note else []
        if report.note and "fine-tuning: going on" in report.note:
            begun = parameters_to_vector(task.model.parameters()).detach().clone()
    assert begun is not None
    torch.testing.assert_close(begun, seen[2])
    assert report.step == 30
    assert "stopping early: fine-tuning" in notes[-1]
    kept = saved(bench.folder / "run" / MODEL_FILE)
    torch.testing.assert_close(torch.cat([t.flatten() for t in kept.values()]), seen[2])


def test_fine_tuning_starts_after_its_share_of_the_run(bench) -> None:
    bench.optimiser = OptimiserConfig(kind="asgd", learning_rate=0.3, average_latest=1, restarts=1)
    bench.schedule = ScheduleConfig(kind="constant")
    bench.change(steps=40, validate_every=10)
    reports = list(bench.fit())
    assert [r.step for r in reports if r.note and "fine-tuning" in r.note] == [20]


def test_a_slow_save_waits_for_the_checkpoint(bench, monkeypatch) -> None:
    for name in ("QUICK", "SHARE"):
        monkeypatch.setattr(saving, name, 0.0)
    losses = iter([3.0, 2.0, 1.0])
    task = bench.task(validate=lambda limit: Validation(next(losses), 1.0, 200))
    steps = []
    for report in bench.fit(task=task):
        if report.kind == "valid":
            steps.append(checkpoint.read_header(bench.folder / "run" / MODEL_FILE)["step"])
    assert steps == [0, 0, 0]
    assert checkpoint.read_header(bench.folder / "run" / MODEL_FILE)["step"] == 30


def test_the_average_is_what_is_saved(bench) -> None:
    bench.optimiser = OptimiserConfig(kind="asgd", learning_rate=0.3, non_monotone_interval=1)
    bench.schedule = ScheduleConfig(kind="constant")
    losses = iter([1.0, 1.0, 2.0, 0.9, 0.8, 0.7])  # the third starts the averaging, after step 15
    bench.change(validate_every=5)
    task = bench.task(validate=lambda limit: Validation(next(losses), 1.0, 200))
    weights = []
    name, parameter = list(task.model.named_parameters())[-1]

    def noting(batch, state, objective=task.objective):
        weights.append(parameter.detach().clone())
        return objective(batch, state)

    notes = [r.note for r in bench.fit(task=bench.task(
        validate=task.validate, model=task.model, objective=noting)) if r.note]  # fmt: skip
    assert any("averaged" in note for note in notes)
    weights.append(parameter.detach().clone())
    mean = torch.stack(weights[16:31]).mean(dim=0)
    stored = saved(bench.folder / "run" / MODEL_FILE)[name]
    torch.testing.assert_close(stored, mean)


def test_the_learning_rate_follows_the_length_of_a_varied_chunk(bench) -> None:
    bench.optimiser = OptimiserConfig(kind="sgd", learning_rate=1.0)
    bench.schedule = ScheduleConfig(kind="constant")
    bench.dropout = 0.0
    bench.change(vary_chunks=True, chunk_length=20, clip_norm=1e-3, steps=1, seed=4)
    task = bench.task()
    length = bench.task().batches.__next__().targets_BT.shape[1]
    assert length != 20
    before = parameters_to_vector(task.model.parameters()).detach()
    list(bench.fit(task=task))
    moved = parameters_to_vector(task.model.parameters()).detach() - before
    assert float(moved.norm()) == pytest.approx(1e-3 * length / 20, rel=1e-3)


def test_a_run_by_minutes_keeps_its_promise(bench, clock) -> None:
    """Steps of 3 s, validations of 4 s, a test of 10 s, saving of nothing: 10 minutes in all."""
    bench.change(minutes=10.0, validate_every=0)
    task = bench.task()
    task = bench.task(
        objective=clock.costing(3.0, task.objective),
        validate=clock.costing(4.0, task.validate),
        probe=clock.costing(1.0, task.probe),
        test_tokens=500,  # at 50 tokens a second: 10 s
        model=task.model,
    )
    started = clock.now - 30.0  # what reading and encoding took
    reports = list(bench.fit(task=task, clock=clock, started=started))
    ended = clock.now - started + 10.0
    assert 0.98 * 600 <= ended <= 600
    validations = [r for r in reports if r.kind == "valid"]
    assert 4 <= len(validations) <= 8
    assert 4.0 * len(validations) <= 0.06 * 600
    rates = [r.learning_rate for r in reports if r.kind == "step"]
    assert rates[-1] < 0.001 * bench.optimiser.learning_rate * 10
    assert rates == sorted(rates, reverse=True)
    assert reports[-1].kind == "valid"


def test_a_long_validation_text_is_cut_to_fit_the_minutes(bench, clock) -> None:
    asked: list[int | None] = []
    bench.change(minutes=1.0, validate_every=0)
    task = bench.task()

    def validate(limit: int | None, judge: Any = task.validate) -> Any:
        asked.append(limit)
        clock.now += (limit or 200) / 64
        return judge(limit)

    task = bench.task(
        objective=clock.costing(0.5, task.objective),
        validate=validate,
        probe=clock.costing(0.78125, task.probe),  # 64 tokens a second
        model=task.model,
    )
    started = clock.now
    reports = list(bench.fit(task=task, clock=clock))
    assert "validation uses its first 192 tokens" in reports[0].note
    assert set(asked) == {192}
    assert 57 <= clock.now - started <= 60


def test_minutes_count_on_after_an_interruption(bench, clock) -> None:
    def task():
        made = bench.task()
        return bench.task(objective=clock.costing(1.0, made.objective), model=made.model)

    bench.change(minutes=2.0, checkpoint_seconds=10.0)
    started = clock.now
    reports = bench.fit(task=task(), clock=clock)
    report = next(report for report in reports if clock.now - started >= 50)
    reports.close()
    assert report.progress == pytest.approx(50 / 120, abs=0.05)
    clock.now += 10_000.0  # nobody worked
    resumed = clock.now
    list(bench.fit(task=task(), clock=clock, resume=True))
    assert 120 - 50 - 5 <= clock.now - resumed <= 120 - 50 + 11


@pytest.mark.parametrize("seconds", [59, 75])
def test_reading_for_too_long_is_an_error(bench, clock, seconds: int) -> None:
    bench.change(minutes=1.0)
    said = f"no time is left to train in: .* took {seconds} s, the run is to take 60 s"
    with pytest.raises(ElmanError, match=said):
        list(bench.fit(clock=clock, started=clock.now - seconds))


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 1, "steps": 1},
        {"minutes": 0.0},
        {"batch_size": 0},
        {"chunk_length": 0},
        {"sample_length": -1},
        {"batch_size": 3, "accumulate": 2},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ElmanError):
        LaneTrainingConfig(**settings)


@pytest.mark.skipif(not mkl.available(), reason="torch's Adam wants dense gradients")
def test_rows_of_a_large_embedding_train_as_its_whole_gradient(
    bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam, clipping, accumulation; afterwards the embedding is as it was."""
    bench.change(accumulate=2)
    found = []
    for least in (1 << 30, 1):
        monkeypatch.setattr(updating, "FEWEST_NUMBERS", least)
        task = bench.task()
        embedding = task.model.input
        kinds = [(r.kind, r.loss, embedding.sparse) for r in bench.fit(f"run {least}", task)]
        found.append([loss for kind, loss, _ in kinds if kind == "step"])
        assert {is_sparse for kind, _, is_sparse in kinds if kind == "step"} == {least == 1}
        assert not embedding.sparse
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.skipif(not mkl.available(), reason="torch's Adam wants dense gradients")
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_decay_before_clipping_is_of_all_rows(bench, decay: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(updating, "FEWEST_NUMBERS", 1)
    bench.optimiser = OptimiserConfig(weight_decay=decay, clip_decay=True)
    task = bench.task()
    kinds = [(report.kind, task.model.input.sparse) for report in bench.fit(task=task)]
    assert {is_sparse for kind, is_sparse in kinds if kind == "step"} == {not decay}
