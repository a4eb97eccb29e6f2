"""Running a `RunConfig`: set up, build, fit, finish.

`train` is a generator of reports, like the loop inside it. It owns the run folder: what is written
there, in which order, and what it takes to continue in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from elman.base.config import to_dict
from elman.base.errors import UsageError
from elman.base.files import write_text
from elman.batches.encoded import EncodedText, encode_files
from elman.batches.lanes import Lanes
from elman.decode.config import DecodeConfig
from elman.decode.sample import sample
from elman.evaluate.perplexity import Evaluation, evaluate
from elman.objectives.likelihood import likelihood
from elman.recipes.card import card
from elman.recipes.config import RunConfig
from elman.recipes.machine import machine
from elman.recipes.run_folder import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    about,
    check_vocabulary,
    read_config,
    write_config,
)
from elman.text.sources import expand
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.gradients import perplexity
from elman.train.loop import METRICS_FILE, MODEL_FILE, STATE_FILE, Task, Validation, fit
from elman.train.report import MetricsLog, Report

MAY_CHANGE = {"epochs", "steps", "minutes", "validate_every", "patience", "checkpoint_seconds"} | {
    "report_every",
    "sample_length",
    "tensorboard",
}
"""Settings of `training` that a resumed run may have otherwise than it began."""
FEW_UPDATES = 100
"""A run by minutes that made fewer says so: the machine was too slow or too busy for it."""
LEAST_TOKENS = 100
"""Less text than this is a mistake."""
PROBE_LENGTH = 128
"""Tokens of each lane in the validation batches that go before training."""
SAMPLE_TEMPERATURE = 0.8
"""Samples during training keep a little closer to the likely than the model would."""


def train(
    config: RunConfig,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    clock: Callable[[], float] = time.monotonic,
    started: float | None = None,
) -> Iterator[Report]:
    """Train as `config` says, in the folder `out`; the last report has the summary (kind "done").

    `started` is the clock's reading when the user began to wait: minutes count from there. A run
    that a signal stopped ends with a report of kind "stopped" instead; `resume` continues it.
    """
    started = clock() if started is None else started
    where = machine(device)
    _claim(out, config, resume)
    # Before the first train state nothing of a run is kept but its settings: it begins again.
    resume = resume and (out / STATE_FILE).exists()

    yield Report(
        kind="note", note=f"reading the text ({where.description})", seconds=clock() - started
    )
    texts = _set_up(config, out, resume)
    model = _build(config, texts, out, resume).to(where.device)
    write_config(out, config)
    yield Report(kind="note", note=_scale(texts, model), seconds=clock() - started)

    task = _task(config, texts, model)
    stopped = False
    last_sample = None
    with _quick_products():
        for report in fit(
            task,
            config.optimiser,
            config.schedule,
            config.training,
            out,
            resume=resume,
            clock=clock,
            started=started,
        ):
            last_sample = report.sample or last_sample
            stopped = report.kind == "stopped"
            if stopped:
                hint = f"continue with: elman train {config.task} --out {out} --resume"
                report = replace(report, note=f"{report.note} ({hint})")
            yield report
    if not stopped:
        yield _finish(config, out, texts, model, last_sample, clock)


@contextmanager
def _quick_products() -> Iterator[None]:
    """While training on CUDA, products of float32 matrices in TensorFloat-32, as cuDNN's are."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _claim(out: Path, config: RunConfig, resume: bool) -> None:
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


def _check_same(old: RunConfig, new: RunConfig) -> None:
    before, now = _flat(to_dict(old)), _flat(to_dict(new))
    allowed = {f"training.{name}" for name in MAY_CHANGE}
    for key in sorted((before.keys() | now.keys()) - allowed):
        if before.get(key) != now.get(key):
            raise UsageError(
                f"the run was begun with {key}={before.get(key)}, and now it is {now.get(key)}",
                "leave the setting out: a resumed run keeps its own",
            )


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat.update(
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


@dataclass(frozen=True)
class _Texts:
    """The text of a run, encoded."""

    tokenizer: Tokenizer
    counts: Any
    """How often each token occurs, for a new model; None where the model is there already."""
    train: EncodedText
    valid: EncodedText
    test: EncodedText | None


def _set_up(config: RunConfig, out: Path, resume: bool) -> _Texts:
    data = config.data
    train_files = expand(data.train)
    if resume:
        tokenizer, counts = Tokenizer.load(out / TOKENIZER_FILE), None
    else:
        tokenizer, counts = train_tokenizer(train_files, config.tokenizer)
        tokenizer.save(out / TOKENIZER_FILE)
    text = encode_files(train_files, tokenizer)
    if data.valid:
        train_text, valid_text = text, encode_files(expand(data.valid), tokenizer)
    else:
        train_text, valid_text = text.split(1 - data.valid_fraction)
    test_text = encode_files(expand(data.test), tokenizer) if data.test else None
    if text.num_tokens < LEAST_TOKENS:
        raise UsageError(
            f"there is too little text to learn from: {text.num_tokens} tokens",
            "give it some thousand words at the least; `elman corpora` lists built-in texts",
        )
    return _Texts(tokenizer, counts, train_text, valid_text, test_text)


def _build(config: RunConfig, texts: _Texts, out: Path, resume: bool) -> Any:
    """A model as it is at the start; seeded again after, whatever building it has drawn."""
    tokenizer, seed = texts.tokenizer, config.training.seed
    torch.manual_seed(seed)
    model: Any = config.model.build(
        tokenizer.vocab_size,
        counts_V=None if texts.counts is None else torch.as_tensor(texts.counts),
        spellings=tokenizer.spellings(),
        boundary_id=tokenizer.boundary_id,
    )
    if resume:
        check_vocabulary(out, tokenizer, checkpoint.read_header(out / MODEL_FILE))
    torch.manual_seed(seed)
    return model


def _scale(texts: _Texts, model: Any) -> str:
    return (
        f"{texts.train.num_tokens:,} tokens to learn from, "
        f"{texts.valid.num_tokens:,} to validate on, "
        f"{texts.tokenizer.vocab_size:,} types, {_num_parameters(model):,} parameters"
    )


def _num_parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def _task(config: RunConfig, texts: _Texts, model: Any) -> Task:
    training, tokenizer = config.training, texts.tokenizer

    def validate(limit: int | None) -> Validation:
        found = _evaluate(model, _beginning(texts.valid, limit), tokenizer)
        return Validation(found.nats_per_token, found.bits_per_byte, found.tokens)

    def probe() -> int:
        text = _beginning(texts.valid, training.batch_size * PROBE_LENGTH)
        lanes = training.batch_size
        return evaluate(
            model, text, boundary_id=tokenizer.boundary_id, batch_size=lanes, overlap=0
        ).tokens

    def draw(seed: int) -> str:
        decoding = DecodeConfig(
            max_tokens=training.sample_length, temperature=SAMPLE_TEMPERATURE, seed=seed
        )
        steps = sample(model, [[]], decoding, boundary_id=tokenizer.boundary_id)
        return tokenizer.decode([step.token for step in steps])

    return Task(
        model=model,
        objective=partial(likelihood, config.objective, model),
        batches=Lanes(
            texts.train,
            boundary_id=tokenizer.boundary_id,
            batch_size=training.batch_size,
            chunk_length=training.chunk_length,
            vary_chunks=training.vary_chunks,
            seed=training.seed,
        ),
        validate=validate,
        valid_tokens=texts.valid.num_tokens,
        probe=probe,
        test_tokens=0 if texts.test is None else texts.test.num_tokens,
        sample=draw,
        exact=model.head.exact,
        about=about(tokenizer),
    )


def _beginning(text: EncodedText, num_tokens: int | None) -> EncodedText:
    """The first tokens of a text; their share of its bytes is an estimate."""
    if num_tokens is None or num_tokens >= text.num_tokens:
        return text
    num_bytes = round(text.num_bytes * num_tokens / text.num_tokens)
    return EncodedText(text.ids[:num_tokens], num_bytes=num_bytes)


def _evaluate(model: Any, text: EncodedText, tokenizer: Tokenizer) -> Evaluation:
    return evaluate(model, text, boundary_id=tokenizer.boundary_id, unknown_id=tokenizer.unknown_id)


def _finish(
    config: RunConfig,
    out: Path,
    texts: _Texts,
    model: Any,
    last_sample: str | None,
    clock: Callable[[], float],
) -> Report:
    """Judge the best model on the test text, write the card, and sum up."""
    ended = clock()
    state = checkpoint.read_header(out / STATE_FILE)
    progress = state["progress"]
    tensors, header = checkpoint.read(out / MODEL_FILE)
    checkpoint.load_weights(model, tensors, out / MODEL_FILE)
    valid = header["validation"]
    summary = {
        "out": str(out),
        "perplexity": perplexity(valid["nats_per_token"]),
        "nats_per_token": valid["nats_per_token"],
        "bits_per_byte": valid["bits_per_byte"],
        "valid_tokens": valid["num_tokens"],
        "steps": progress["step"],
        "best_step": header["step"],
        "tokens": progress["tokens"],
    }
    note = None
    if config.training.minutes is not None and progress["step"] < FEW_UPDATES:
        note = (
            f"only {progress['step']} updates fitted into the minutes: expect little of the model"
        )
    if texts.test is not None:
        text = texts.test
        if config.training.minutes is not None:
            left = config.training.minutes * 60 - state["seconds"]
            fits = max(LEAST_TOKENS, int(left * state["evaluation_rate"]))
            if fits < text.num_tokens:
                text = _beginning(text, fits)
                note = f"the test is its first {fits:,} tokens: more would not fit into the minutes"
        found = _evaluate(model, text, texts.tokenizer)
        summary |= {
            "test_perplexity": found.perplexity,
            "test_nats_per_token": found.nats_per_token,
            "test_bits_per_byte": found.bits_per_byte,
            "test_tokens": found.tokens,
            "test_oov": found.oov,
        }
    summary["seconds"] = round(state["seconds"] + clock() - ended, 3)
    summary["tokens_per_second"] = round(
        progress["tokens"] / max(1e-9, progress["update_seconds"]), 1
    )
    write_text(
        out / CARD_FILE,
        card(
            config,
            texts.tokenizer,
            _num_parameters(model),
            summary,
            last_sample,
            valid_is_cut=valid["num_tokens"] < texts.valid.num_tokens,
            test_is_cut=texts.test is not None and summary["test_tokens"] < texts.test.num_tokens,
        ),
    )
    report = Report(
        kind="done",
        step=progress["step"],
        tokens=progress["tokens"],
        valid_loss=valid["nats_per_token"],
        valid_perplexity=summary["perplexity"],
        valid_bits_per_byte=valid["bits_per_byte"],
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
