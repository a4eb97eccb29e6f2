"""Run a configuration: set up, build, fit, finish.

`train` is a generator of reports, like the loop inside it. It owns the run folder: what is written
there, in which order, and what it takes to continue in it. A task that is fitted in one go, by
counting, yields its own reports; what is particular about a task lies in its folder below `tasks/`.
Networks are imported where they are needed: counting does without torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elman.base.config import to_dict
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.files import write_text
from elman.runs.card import card
from elman.runs.new_folder import undo_on_failure
from elman.runs.run_folder import (
    CARD_FILE,
    CONFIG_FILE,
    EMBEDDINGS_FOLDER,
    METRICS_FILE,
    MODEL_FILE,
    RUN_FILES,
    STATE_FILE,
    TOKENIZER_FILE,
    write_config,
)
from elman.tasks import TaskData, all_tasks, task_named
from elman.tasks.opening import read_config
from elman.train.report import MetricsLog, Report

if TYPE_CHECKING:
    from torch import nn

MAY_CHANGE = {"epochs", "steps", "minutes", "validate_every", "patience", "checkpoint_seconds"} | {
    "report_every",
    "sample_length",
    "tensorboard",
}
"""Settings of `training` that a resumed run may have otherwise than it began."""
FEW_UPDATES = 100
"""A run by minutes that made fewer says so: the machine was too slow or too busy for it."""
LEAST_TOKENS = 100
"""A test that has to be cut for time keeps so many tokens at the least."""


def train(
    config: Any,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    begin_with: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    started: float | None = None,
    **options: Any,
) -> Iterator[Report]:
    """Train as `config` says, in the folder `out`; the last report (kind "done") has the summary.

    `started` is the clock's reading when the user began to wait: minutes count from there. A run
    stopped by a signal ends with a report of kind "stopped" instead; `resume` continues it. The
    first weights are those of the run in `begin_with`, a model of the same shape over the same
    vocabulary, or else drawn at random. A run that fails before its first update removes what it
    has written. `options` are those that a counted task takes beside its settings.
    """
    started = clock() if started is None else started
    task = task_named(config.task)
    if task.fit is not None:
        yield from task.part("fit")(config, out, **options)
        return
    import torch

    from elman.nn.kernels import kernel_notes, loops
    from elman.runs.machine import machine
    from elman.train import checkpoint
    from elman.train.loop import fit

    where = machine(device)
    _claim(out, config, resume)
    # Before the first train state a run has nothing but its settings: it starts again.
    resume = resume and (out / STATE_FILE).exists()

    stopped = False
    last_sample = None
    undo = None if resume else undo_on_failure(out, [*_run_files(), *task.files])
    try:
        yield Report(
            kind="note", note=f"reading the text ({where.description})", seconds=clock() - started
        )
        data: TaskData = task.functions.set_up(config, out, resume)
        torch.manual_seed(config.training.seed)
        model = data.build()
        torch.manual_seed(config.training.seed)  # again: building draws a varying amount
        if begin_with is not None:
            tensors, _ = checkpoint.read(begin_with / MODEL_FILE)
            checkpoint.load_weights(model, tensors, begin_with / MODEL_FILE)
        model = model.to(where.device)
        write_config(out, config)
        scale = f"{data.scale()}, {_num_parameters(model):,} parameters"
        if frozen := sum(p.numel() for p in model.parameters() if not p.requires_grad):
            scale += f", {frozen:,} of them frozen"
        if where.device == "cpu" and not loops.is_compiled():
            scale += "; compiling loops first, once, which takes up to half a minute"
        yield Report(kind="note", note=scale, seconds=clock() - started)
        for note in kernel_notes() if where.device == "cpu" else ():
            yield Report(kind="note", note=note, seconds=clock() - started)

        with _tensor_float_32():
            for report in fit(
                data.trainable(model),
                config.optimiser,
                config.schedule,
                config.training,
                out,
                resume=resume,
                clock=clock,
                started=started,
                watch=partial(_executed_kernels, model),
            ):
                undo = None  # training has begun
                last_sample = report.sample or last_sample
                stopped = report.kind == "stopped"
                if stopped:
                    hint = f"continue with: elman train {config.task} --out {out} --resume"
                    report = replace(report, note=f"{report.note} ({hint})")
                yield report
    except Exception:
        if undo is not None:
            undo()
        raise
    if not stopped:
        yield _finish(config, out, data, model, last_sample, clock)


@contextmanager
def _executed_kernels(model: nn.Module) -> Iterator[dict[str, str]]:
    """Yield a mapping that, in the end, names what computed each layer meanwhile."""
    from elman.nn.kernels import plans_by_layer, recorded_plans

    names: dict[str, str] = {}
    with recorded_plans() as plans:
        yield names
    names.update(plans_by_layer(model, plans))


def _run_files() -> list[str]:
    """Names that a run of any task may have written."""
    own = [name for task in all_tasks() for name in task.files]
    return [*RUN_FILES, TOKENIZER_FILE, EMBEDDINGS_FOLDER, *own]


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


def _claim(out: Path, config: Any, resume: bool) -> None:
    """See that `out` can be used: empty of runs, or holding the run that is to be continued."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", "choose another --out")
    if resume:
        if not (out / CONFIG_FILE).is_file():
            raise UsageError(f"there is no run to resume in {out}", "start it without --resume")
        _check_same(read_config(out), config)
    elif (out / MODEL_FILE).exists():
        raise UsageError(
            f"{out} already holds a run", "continue it with --resume, or choose another --out"
        )


def _check_same(old: Any, new: Any) -> None:
    before, now = _flat(to_dict(old)), _flat(to_dict(new))
    allowed = {f"training.{name}" for name in MAY_CHANGE}
    for key in sorted((before.keys() | now.keys()) - allowed):
        if before.get(key) != now.get(key):
            raise UsageError(
                f"the run was begun with {key}={before.get(key)}, and now it is {now.get(key)}",
                f"write elman train {before[key]}"
                if key == "task"
                else "leave the setting out: a resumed run keeps its own",
            )


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat.update(
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def _num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _finish(
    config: Any,
    out: Path,
    data: TaskData,
    model: nn.Module,
    last_sample: str | None,
    clock: Callable[[], float],
) -> Report:
    """Measure the best model on the test data, write the card, and make the summary."""
    from elman.models.embeddings import layer_weights
    from elman.train import checkpoint

    ended = clock()
    state = checkpoint.read_header(out / STATE_FILE)
    progress = state["progress"]
    tensors, header = checkpoint.read(out / MODEL_FILE)
    checkpoint.load_weights(model, tensors, out / MODEL_FILE)
    valid = header["validation"]
    summary = {
        "out": str(out),
        **_figures(valid),
        "valid_tokens": valid["num_tokens"],
        "steps": progress["step"],
        "best_step": header["step"],
        "tokens": progress["tokens"],
    }
    note = None
    if config.training.minutes is not None and progress["step"] < FEW_UPDATES:
        note = (
            f"only {counted(progress['step'], 'update')} fitted into the minutes: expect little of "
            "the model"
        )
    if data.test_tokens:
        limit = None
        if config.training.minutes is not None:
            left = config.training.minutes * 60 - state["seconds"]
            fits = max(LEAST_TOKENS, int(left * state["evaluation_rate"]))
            if fits < data.test_tokens:
                limit = fits
                note = f"the test is its first {fits:,} tokens: more would not fit into the minutes"
        model.eval()
        found = data.test(model, limit)
        summary |= {f"test_{name}": value for name, value in found.items()}
    if kernels := state.get("kernels"):
        summary["kernels"] = kernels
    if weights := layer_weights(model):
        summary["layer_weights"] = weights
    summary["seconds"] = round(state["seconds"] + clock() - ended, 3)
    summary["tokens_per_second"] = round(
        progress["tokens"] / max(1e-9, progress["update_seconds"]), 1
    )
    write_text(
        out / CARD_FILE,
        card(
            config,
            data.describe(),
            _num_parameters(model),
            summary,
            last_sample,
            uses=data.uses(),
            valid_is_cut=valid["num_tokens"] < data.valid_tokens,
            test_is_cut=0 < summary.get("test_tokens", 0) < data.test_tokens,
        ),
    )
    report = Report(
        kind="done",
        step=progress["step"],
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
    log.close()
    return report


def _figures(valid: Mapping[str, Any]) -> dict[str, Any]:
    """The best validation by the names of the summary."""
    from elman.train.gradients import perplexity

    figures: dict[str, Any] = dict(valid.get("metrics", {}))
    if valid["nats_per_token"] is not None:
        figures["perplexity"] = perplexity(valid["nats_per_token"])
        figures["nats_per_token"] = valid["nats_per_token"]
    if valid["bits_per_byte"] is not None:
        figures["bits_per_byte"] = valid["bits_per_byte"]
    return figures
