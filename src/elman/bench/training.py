"""Whole training runs: training regimes, captioners with and without pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from elman.base.config import parse_overrides
from elman.base.errors import ElmanError
from elman.bench.rows import Row, less_is_better, more_is_better
from elman.bench.sizes import parse_names
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.train.report import Report

REGIMES: dict[str, tuple[str, ...]] = {
    "teacher_forcing": (),
    **{
        f"scheduled_sampling {curriculum}": (
            "objective.regime=scheduled_sampling",
            f"objective.curriculum={curriculum}",
        )
        for curriculum in ("linear", "exponential", "inverse_sigmoid")
    },
    **{
        regime: (f"objective.regime={regime}",)
        for regime in ("free_running", "professor_forcing", "minimum_risk", "self_critical")
    },
}
"""Every regime and its settings."""
LEARNING_RATE = 0.0003
"""For continuing a trained model: a third of a new model's."""


def train_run(
    task: str,
    data: Sequence[str],
    settings: Sequence[str],
    out: Path,
    *,
    device: str = "auto",
    begin_with: Path | None = None,
    **options: Any,
) -> tuple[Mapping[str, float], Report]:
    """Train a whole run; return its summary and its last validation."""
    overrides = parse_overrides(settings)
    config = resolve(task, data, settings=overrides, device=device, **options).config
    return run_config(config, out, device=device, begin_with=begin_with)


def run_config(
    config: Any, out: Path, *, device: str = "auto", begin_with: Path | None = None
) -> tuple[Mapping[str, float], Report]:
    """Train a run with these settings; return its summary and its last validation."""
    summary: Mapping[str, float] | None = None
    last: Report | None = None
    for report in train(config, out, device=device, begin_with=begin_with):
        summary = report.summary or summary
        last = report if report.kind == "valid" else last
    if summary is None or last is None:
        raise ElmanError("the training run was stopped", "start the bench again")
    return summary, last


def parse_regimes(text: str | None) -> list[str]:
    return list(REGIMES) if text is None else parse_names(text, REGIMES, "regime")


def compare_regimes(
    data: Sequence[str],
    names: Sequence[str],
    settings: Sequence[str],
    folder: Path,
    *,
    valid: Sequence[str],
    first_steps: int,
    steps: int,
    device: str,
) -> Iterator[Row]:
    """What an update of each training regime costs, and what it changes.

    A translator is trained by teacher forcing. Each regime continues from that model at a lower
    learning rate and is validated at the end, better or worse: surprisal of the reference
    translations, BLEU and chrF of greedy ones. The first regime is the peer of the others.
    """

    def run(
        name: str, length: int, *more: str, begin_with: Path | None = None
    ) -> tuple[Mapping[str, float], Report]:
        # Without input feeding, teacher forcing reads the target in one pass, as it should.
        usual = ("model.decoder.input_feeding=false", f"training.validate_every={length}")
        return train_run(
            *("translator", data, [*usual, *settings, *more], folder / name.replace(" ", "-")),
            valid=valid,
            steps=length,
            seed=1,
            device=device,
            begin_with=begin_with,
        )

    _, last = run("begun", first_steps)
    yield from _quality("the beginning", last, None, {"steps": first_steps})
    peer: tuple[float, Report] | None = None
    continued = (f"optimiser.learning_rate={LEARNING_RATE}", "schedule.warmup_steps=0")
    for name in names:
        more = (*continued, *REGIMES[name])
        found, last = run(name, steps, *more, begin_with=folder / "begun")
        milliseconds = 1000 * found["tokens"] / found["tokens_per_second"] / found["steps"]
        peer = peer or (milliseconds, last)
        about = {"regime": name, "steps": steps, "first_steps": first_steps, "beside": names[0]}
        yield less_is_better(f"{name}: an update", milliseconds, peer[0], "ms", **about)
        yield from _quality(name, last, peer[1], about)


def _quality(
    name: str, last: Report, peer: Report | None, about: Mapping[str, object]
) -> Iterator[Row]:
    """The metrics of a last validation as rows."""
    assert last.valid_loss is not None
    other = None if peer is None else peer.valid_loss
    yield less_is_better(f"{name}: surprisal", last.valid_loss, other, "nats", **about)
    metrics, others = last.valid_metrics or {}, (peer and peer.valid_metrics) or {}
    for key, unit in (("bleu", "BLEU"), ("chrf", "chrF")):
        if key in metrics:
            yield more_is_better(f"{name}: {unit}", metrics[key], others.get(key), unit, **about)


def compare_pictures(
    table: str,
    test: str,
    attempts: Sequence[str],
    settings: Sequence[str],
    folder: Path,
    num_seeds: int,
) -> Iterator[Row]:
    """A captioner beside the same model without access to the pictures: means over seeds.

    Each of the two is trained once per attempted setting and seed. The attempt with the lowest mean
    surprisal on the part of `table` that is held out is then measured on `test`.
    """
    seeing, blind = (
        _best(table, test, attempts, [*settings, f"model.blind={value}"], folder, num_seeds)
        for value in ("false", "true")
    )
    for name, title, unit, row in (
        ("nats_per_token", "surprisal", "nats", less_is_better),
        ("cider", "CIDEr", "CIDEr", more_is_better),
        ("bleu", "BLEU", "BLEU", more_is_better),
    ):
        if name not in seeing[1]:
            continue
        ours, peer = seeing[1][name], blind[1][name]
        about = {
            "seeing": ours,
            "blind": peer,
            "seeing_deviation": pstdev(ours),
            "blind_deviation": pstdev(peer),
            "seeing_setting": seeing[0],
            "blind_setting": blind[0],
            "beside": "the same, blind",
        }
        yield row(title, fmean(ours), fmean(peer), unit, **about)


def _best(
    table: str,
    test: str,
    attempts: Sequence[str],
    settings: Sequence[str],
    folder: Path,
    num_seeds: int,
) -> tuple[str, dict[str, list[float]]]:
    """Train every attempt; return the best one and its test metrics by seed."""
    from elman.tasks.captioning.batches import read_captions  # needs the extra `images`
    from elman.tasks.captioning.task import encode_captions, measure, one_table
    from elman.tasks.opening import open_run

    captions = read_captions(one_table(test))
    runs: dict[str, list[tuple[float, Path]]] = {}
    for attempt in attempts:
        given = [*settings, *filter(None, [attempt])]
        runs[attempt] = []
        for seed in range(1, num_seeds + 1):
            out = folder / f"{settings[-1]}-{len(runs)}-{seed}"
            summary, _ = train_run("captioner", [table], given, out, seed=seed)
            runs[attempt].append((summary["nats_per_token"], out))
    best = min(runs, key=lambda attempt: fmean(nats for nats, _ in runs[attempt]))
    metrics: dict[str, list[float]] = {}
    for _, out in runs[best]:
        run = open_run(out)
        encoded = encode_captions(captions, run.tokenizer, run.config)
        for name, value in measure(run.model, run.tokenizer, encoded).items():
            metrics.setdefault(name, []).append(value)
    return best, metrics
