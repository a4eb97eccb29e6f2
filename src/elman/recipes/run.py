"""Run a configuration: set up, build, fit, finish.

`train` is a generator of reports, like the training loop. It writes the run folder, and checks that
a run can be resumed there. A task that is fitted in one go, such as by counting, yields its own
reports. torch is imported where it is needed: counting does not need it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from elman.base.config import flat, to_dict
from elman.base.counting import counted
from elman.base.documents import intact, read_json_lines, sealed_page
from elman.base.errors import ElmanError, UsageError
from elman.base.files import make_folder, write_text
from elman.base.launch import launch
from elman.base.tables import imported
from elman.recipes.resolve import LENGTHS, nothing_to_resume
from elman.runs.card import card
from elman.runs.lock import locked
from elman.runs.new_folder import set_aside, undo_on_failure
from elman.runs.origin import check_origin, signature
from elman.runs.run_folder import (
    CARD_FILE,
    CONFIG_FILE,
    EMBEDDINGS_FOLDER,
    METRICS_FILE,
    MODEL_FILE,
    RUN_FILES,
    STAGES_FOLDER,
    STATE_FILE,
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    write_config,
)
from elman.runs.trackers import TRACK_FILE, following
from elman.tasks import TaskData, all_tasks, task_named
from elman.tasks.opening import read_config
from elman.text.sources import expand
from elman.train.ranks import ALONE, Ranks
from elman.train.report import MetricsLog, Report

if TYPE_CHECKING:
    from torch import nn

    from elman.train.trainable import Trainable

JOB_FILE = "train/job"
"""Names the torchrun command that trains here (`base/launch.py`)."""
MAY_CHANGE = {"epochs", "steps", "minutes", "validate_every", "patience", "checkpoint_seconds"} | {
    *("report_every", "sample_length", "tensorboard"),
}
"""Settings of `training` that a resumed run may change."""
FEW_UPDATES = 100
"""A run with --minutes that made fewer updates warns: the machine was too slow or too busy."""
LEAST_TOKENS = 100
"""The least tokens of a test that is cut to fit into --minutes."""


def train(
    config: Any,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    named: Collection[str] | None = (),
    begin_with: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    started: float | None = None,
    track: Sequence[str] = (),
    ranks: Ranks = ALONE,
    **options: Any,
) -> Iterator[Report]:
    """Train in the folder `out`; the last report (kind "done") has the summary.

    `training.minutes` count from `started`, a reading of `clock`. A run stopped by a signal ends
    with a report of kind "stopped"; `resume` continues it. A run that this user did not start reads
    files outside of the working directory only if they are `named` (None: all of them).
    `begin_with` is a run of the same shape and vocabulary whose weights to start with, instead of
    random ones. A run that fails before its first update removes its files. With `overwrite` a run
    in `out` is replaced, and put back if the new one fails before its first update. `track` names
    trackers that get the reports. With several `ranks`, the leader yields the reports, and the
    others none. `options` are arguments of the task's `fit`.
    """
    started = clock() if started is None else started
    task = task_named(config.task)
    fit = task.fit
    if fit is None and resume:
        ended = ranks.from_leader(lambda: _ended(out, config))
        if ended is not None:
            yield from (ended,) if ranks.is_leader else ()
            return
    if fit is None:
        imported("torch")  # Ctrl-C ends an import at once, unless files are being written
    if not ranks.is_leader:
        _follow(config, device, ranks)
        return
    if fit is None:
        _check_shares(config, ranks)
    with locked(out), set_aside(out, _run_files()) if overwrite else nullcontext() as aside:
        if fit is not None:
            if resume and (out / STAGES_FOLDER / CONFIG_FILE).is_file():
                _check_same(read_config(out / STAGES_FOLDER), config)
                check_origin(out / STAGES_FOLDER, config, named)
            also = {"resume": resume} if task.resumes else {}
            yield from imported(fit)(config, out, **also, **options)
            return
        with following(out, track, skip=resume) as follow:
            reports = _train(config, out, device, resume, named, begin_with, clock, started, ranks)
            for report in reports:
                if aside is not None and report.kind not in ("note", "done"):
                    aside.drop()  # training has begun
                follow()
                yield report


def _ended(out: Path, config: Any) -> Report | None:
    """The last report of a run that has ended; None if it has not, or is to be longer."""
    if not (out / CONFIG_FILE).is_file() or not (out / METRICS_FILE).is_file():
        return None
    try:
        reports = read_json_lines(out / METRICS_FILE)
    except ElmanError:  # what a crash left after the last checkpoint is cut off later
        return None
    if not reports or reports[-1].get("kind") != "done":
        return None
    last, saved = reports[-1], cast(Any, read_config(out))
    _check_same(saved, config)
    before, now = saved.training, config.training
    with intact(out / METRICS_FILE):
        done = {"steps": last["step"], "epochs": last["epoch"], "minutes": last["seconds"] / 60}
        unit = next(unit for unit in done if getattr(now, unit) is not None)
        is_longer = getattr(now, unit) > max(done[unit], getattr(before, unit) or 0)
        if is_longer or now.patience != before.patience:
            return None
        updates = counted(last["step"], "update")
        note = f"the run is already finished ({updates}): nothing was changed"
        return Report(
            kind="done",
            step=last["step"],
            seconds=last["seconds"],
            note=f"{note}; with more --{unit} it goes on",
            summary={**last["summary"], "out": str(out)},
        )


def _run_files() -> list[str]:
    """The files and folders of a run of any task."""
    own = [name for task in all_tasks() for name in task.files]
    return [
        *RUN_FILES,
        *TOKENIZER_FILES,
        EMBEDDINGS_FOLDER,
        TRACK_FILE,
        "tensorboard",
        "wandb",
        *own,
    ]


def _train(
    config: Any,
    out: Path,
    device: str,
    resume: bool,
    named: Collection[str] | None,
    begin_with: Path | None,
    clock: Callable[[], float],
    started: float,
    ranks: Ranks,
) -> Iterator[Report]:
    """Train by the loop."""
    import torch

    from elman.nn.kernels import kernel_notes, loops
    from elman.runs.machine import machine
    from elman.train import checkpoint
    from elman.train.loop import fit

    task = task_named(config.task)
    where = machine(device)
    _claim(out, config, resume)
    before = cast(Any, read_config(out)).training if resume else config.training
    begun = (out / STATE_FILE).exists()
    if resume:
        check_origin(out, config, named, begun=begun)
    if resume and not begun:
        _check_nothing_is_lost(out)
    # A run that was killed before it saved a train state starts again.
    resume = resume and begun

    stopped = False
    names = [*RUN_FILES, *TOKENIZER_FILES, EMBEDDINGS_FOLDER, *task.files]
    undo = None if resume else undo_on_failure(out, names)
    try:
        on = where.description
        if ranks.size > 1:
            on = f"{ranks.size} processes, this one on {on}"
        yield Report(kind="note", note=f"reading the text ({on})", seconds=clock() - started)
        data: TaskData = task.functions.set_up(config, out, resume)
        torch.manual_seed(config.training.seed)
        state = out / STATE_FILE
        model = checkpoint.build_to_resume(data.build, state) if resume else data.build()
        torch.manual_seed(config.training.seed)  # building consumed random numbers
        if begin_with is not None:
            tensors, _ = checkpoint.read(begin_with / MODEL_FILE)
            checkpoint.load_weights(model, tensors, begin_with / MODEL_FILE)
        model = model.to(where.device)
        if not resume:
            write_config(out, config, signature(config))
        if (job := launch().job) is not None:
            make_folder((out / JOB_FILE).parent)
            write_text(out / JOB_FILE, job)
        scale = f"{data.scale()}, {_num_parameters(model):,} parameters"
        if frozen := sum(p.numel() for p in model.parameters() if not p.requires_grad):
            scale += f", {frozen:,} of them frozen"
        if where.device == "cpu" and not loops.is_compiled():
            scale += "; compiling loops once, up to half a minute"
        yield Report(kind="note", note=scale, seconds=clock() - started)
        for note in getattr(data, "caveats", ()):
            yield Report(kind="note", note=note, seconds=clock() - started)
        for note in kernel_notes() if where.device == "cpu" else ():
            yield Report(kind="note", note=note, seconds=clock() - started)

        with _tensor_float_32():
            with checkpoint.limited_by(state) if resume else nullcontext():
                trainable = data.trainable(model)
            if ranks.size > 1:
                ranks.from_leader(lambda: _files_of(out, task.files, trainable))
                ranks.prepare(lambda: (out, _set_up_of(config, trainable, where.device)))
            for report in fit(
                trainable,
                config.optimiser,
                config.schedule,
                config.training,
                out,
                resume=resume,
                clock=clock,
                started=started,
                watch=partial(_executed_kernels, model),
                ranks=ranks,
            ):
                undo = None  # training has begun
                # Earlier, a finished run with a new length would look as if it had reached it.
                if resume and report.kind == "resume":
                    write_config(out, config, signature(config))
                    if any(getattr(before, n) != getattr(config.training, n) for n in LENGTHS):
                        note = _told_rate(config, out, report)
                        report = replace(report, note=f"{report.note}; {note}")
                stopped = report.kind == "stopped"
                if stopped:
                    hint = f"Continue with: elman train {config.task} --out {out} --resume"
                    report = replace(report, note=f"{report.note}. {hint}")
                yield report
    except (Exception, KeyboardInterrupt):
        if undo is not None:
            undo()
        raise
    if not stopped:
        yield _finish(config, out, data, trainable, clock)


def _told_rate(config: Any, out: Path, report: Report) -> str:
    """Say at which learning rate a run of another length goes on, and how to change it."""
    kind, rate = config.schedule.kind, f"the learning rate goes on at {report.learning_rate:.2g}"
    rates = [one["learning_rate"] for one in read_json_lines(out / METRICS_FILE) if "loss" in one]
    if kind in ("cosine", "linear"):
        told = f"the {kind} schedule is spread over the new length: {rate}"
        told += f" (before: {rates[-1]:.2g})" if rates else ""
    else:
        told = f"{rate} ({kind} schedule)"
    task = task_named(config.task)
    if any(option.setting == "training.start" for option in task.options):
        told += "; for another schedule, start a new run from this one: "
        told += f"elman train {task.name} TEXT --from {out}"
    return told


def is_continued(out: Path | None) -> bool:
    """Whether torchrun has started the run in `out`, and starts its processes again."""
    job = launch().job
    if job is None or out is None or not (out / CONFIG_FILE).is_file():
        return False
    try:
        return (out / JOB_FILE).read_text(encoding="utf-8") == job
    except (OSError, UnicodeError):
        return False


def _check_shares(config: Any, ranks: Ranks) -> None:
    if config.training.batch_size < ranks.size:
        raise UsageError(
            f"a batch of {config.training.batch_size} cannot be divided among {ranks.size} "
            "processes",
            f"set training.batch_size to {ranks.size} or more, or start fewer processes",
        )


Sent = tuple[dict[str, bytes], dict[str, Any]]
"""The small files of a run folder by name, and the header of its model file."""


def _files_of(out: Path, names: Sequence[str], trainable: Trainable) -> Sent:
    """What the other processes, which may not see the run folder, need of it."""
    folder = out / EMBEDDINGS_FOLDER
    files = [out / name for name in (TOKENIZER_FILE, *names)]
    files = [path for path in (*files, *folder.rglob("*")) if path.is_file()]
    contents = {str(path.relative_to(out)): path.read_bytes() for path in files}
    return contents, dict(trainable.about)


def _follow(config: Any, device: str, ranks: Ranks) -> None:
    """Train as the leader orders, with a copy of the files of its run folder."""
    from elman.runs.machine import machine
    from elman.train.loop import follow

    where = machine(device)
    with TemporaryDirectory() as folder, _tensor_float_32():
        sent: Sent = ranks.from_leader(lambda: ({}, {}))
        trainable = ranks.prepare(lambda: _copied(config, Path(folder), sent, where.device))
        follow(trainable, config.optimiser, config.schedule, config.training, ranks)


def _copied(config: Any, folder: Path, sent: Sent, device: str) -> tuple[Trainable, dict[str, str]]:
    """Set up as the leader has; the weights come later."""
    from elman.train import checkpoint

    files, about = sent
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    checkpoint.write(folder / MODEL_FILE, {}, about)
    data: TaskData = task_named(config.task).functions.set_up(config, folder, True)
    trainable = data.trainable(data.build().to(device))
    return trainable, _set_up_of(config, trainable, device)


def _set_up_of(config: Any, trainable: Trainable, device: str) -> dict[str, str]:
    """What has to be the same in all processes."""
    import torch

    from elman import __version__

    batches = trainable.batches.state_dict()
    if "text_hash" in batches:  # the whole text has been read
        data = str(batches["text_hash"])
    else:
        digest = hashlib.blake2b(digest_size=16)
        for path in expand(config.data.train):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        data = digest.hexdigest()
    return {
        "Elman": __version__,
        "torch": torch.__version__,
        "kind of device": device.partition(":")[0],
        "training data": f"{data} ({trainable.batches.tokens_per_epoch:,} tokens)",
    }


@contextmanager
def _executed_kernels(model: nn.Module) -> Iterator[dict[str, str]]:
    """Yield a mapping that is filled at the end: the kernel that computed each layer."""
    from elman.nn.kernels import plans_by_layer, recorded_plans

    names: dict[str, str] = {}
    with recorded_plans() as plans:
        yield names
    names.update(plans_by_layer(model, plans))


@contextmanager
def _tensor_float_32() -> Iterator[None]:
    """On CUDA, multiply float32 matrices in TensorFloat-32 while training, as cuDNN does."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _check_nothing_is_lost(out: Path) -> None:
    """Refuse to start a run again over a trained model."""
    from elman.train import checkpoint

    model = out / MODEL_FILE
    if model.exists() and checkpoint.read_header(model).get("step"):
        raise ElmanError(
            f"{out / STATE_FILE} is missing, and {model} has been trained",
            "restore the train state from a copy, or start a new run with another --out",
        )


def _claim(out: Path, config: Any, resume: bool) -> None:
    """Check that `out` holds no run, or with `resume` the run to continue."""
    if resume:
        if not (out / CONFIG_FILE).is_file():
            raise nothing_to_resume(out)
        _check_same(read_config(out), config)
    elif (out / MODEL_FILE).exists():
        raise UsageError(
            f"{out} already holds a run",
            "continue it with --resume, replace it with --overwrite, or choose another --out",
        )


def _check_same(old: Any, new: Any) -> None:
    before, now = flat(to_dict(old)), flat(to_dict(new))
    allowed = {f"training.{name}" for name in MAY_CHANGE}
    for key in before | now:  # in the order of declaration: a choice before what follows from it
        if key not in allowed and before.get(key) != now.get(key):
            raise UsageError(
                f"the run was started with {key}={before.get(key)}, not {now.get(key)}",
                f"write elman train {before[key]}"
                if key == "task"
                else "drop the setting: a resumed run keeps its own",
            )


def _num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _finish(
    config: Any,
    out: Path,
    data: TaskData,
    trainable: Trainable,
    clock: Callable[[], float],
) -> Report:
    """Measure the best model on the test data, and write the card and the summary."""
    from elman.models.embeddings import layer_weights
    from elman.train import checkpoint
    from elman.train.gradients import worse_than_chance

    ended = clock()
    state = checkpoint.read_header(out / STATE_FILE)
    progress = state["progress"]
    tensors, header = checkpoint.read(out / MODEL_FILE)
    model, num_tested = trainable.model, trainable.test_tokens
    checkpoint.load_weights(model, tensors, out / MODEL_FILE)
    valid = header["validation"]
    summary = {
        "out": str(out),
        **_figures(valid),
        "valid_tokens": valid["num_tokens"],
        "steps": progress["step"],
        "best_step": header["step"],
        **_moment(out, header["step"]),
        "tokens": progress["tokens"],
    }
    note = None
    if config.training.minutes is not None and progress["step"] < FEW_UPDATES:
        updates = counted(progress["step"], "update")
        note = f"only {updates} in {config.training.minutes:g} minutes: the model is undertrained"
    model.eval()
    if trainable.closing is not None:
        summary |= trainable.closing()
    if num_tested:
        limit = None
        if config.training.minutes is not None:
            left = config.training.minutes * 60 - state["seconds"] - (clock() - ended)
            fits = max(LEAST_TOKENS, int(left * state["evaluation_rate"]))
            if fits < num_tested:
                limit = fits
                note = f"tested on the first {fits:,} tokens only, to keep to --minutes"
        found = data.test(model, limit)
        summary |= {f"test_{name}": value for name, value in found.items()}
    if kernels := state.get("kernels"):
        summary["kernels"] = kernels
    if weights := layer_weights(model):
        summary["layer_weights"] = weights
    note = (
        worse_than_chance(
            valid["nats_per_token"], header.get("vocab_size"), continued=trainable.has_learnt
        )
        or note
    )
    summary["seconds"] = round(state["seconds"] + clock() - ended, 3)
    summary["tokens_per_second"] = round(
        progress["tokens"] / max(1e-9, progress["update_seconds"]), 1
    )
    for part in ("validation", "saving"):
        share = progress.get(f"{part}_seconds", 0.0) / max(1e-9, summary["seconds"])
        summary[f"{part}_share"] = round(share, 4)
    page = sealed_page(
        card(
            config,
            data.describe(),
            _num_parameters(model),
            summary,
            _last_sample(out),
            uses=task_named(config.task).uses,
            metrics=list(valid.get("metrics") or ()),
            valid_is_cut=valid["num_tokens"] < trainable.valid_tokens,
            test_is_cut=0 < summary.get("test_tokens", 0) < num_tested,
        )
    )
    write_text(out / CARD_FILE, page)
    report = Report(
        kind="done",
        step=progress["step"],
        epoch=trainable.batches.epoch,
        tokens=progress["tokens"],
        valid_loss=valid["nats_per_token"],
        valid_perplexity=summary.get("perplexity"),
        valid_bits_per_byte=valid["bits_per_byte"],
        valid_metrics=valid.get("metrics"),
        seconds=summary["seconds"],
        progress=1.0,
        seconds_left=0.0,
        note=note,
        summary=summary,
    )
    log = MetricsLog(out / METRICS_FILE, keep_bytes=state["metrics_bytes"])
    log.write(report)
    log.sync()
    log.close()
    return report


def _moment(out: Path, step: int) -> dict[str, Any]:
    """When the best model was validated, and how often later ones were; nothing if the report is
    lost."""
    valid = [one for one in read_json_lines(out / METRICS_FILE) if one.get("kind") == "valid"]
    for report in valid:
        if report["step"] == step:
            when = {"best_epoch": report["epoch"], "best_seconds": report["seconds"]}
            return when | {"later_validations": sum(one["step"] > step for one in valid)}
    return {}


def _last_sample(out: Path) -> str | None:
    """The last sample of a run, which may have been drawn before it was resumed."""
    samples = [report.get("sample") for report in read_json_lines(out / METRICS_FILE)]
    return next(filter(None, reversed(samples)), None)


def _figures(valid: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the best validation, named as in the summary."""
    from elman.train.gradients import perplexity

    figures: dict[str, Any] = dict(valid.get("metrics", {}))
    if valid["nats_per_token"] is not None:
        figures["perplexity"] = perplexity(valid["nats_per_token"])
        figures["nats_per_token"] = valid["nats_per_token"]
    if valid["bits_per_byte"] is not None:
        figures["bits_per_byte"] = valid["bits_per_byte"]
    if "oov" in valid:
        figures["oov"] = valid["oov"]
    return figures
