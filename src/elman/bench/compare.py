"""The same model trained in several ways, side by side: `elman bench equal-time`, `regimes` and
`pictures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from elman.base.errors import ElmanError
from elman.bench.measuring import Row, less_is_better, more_is_better
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import open_run
from elman.tasks.captioning.batches import read_captions
from elman.tasks.captioning.task import encode_captions, measure, one_table
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
"""Every regime, with its settings; the first is the peer of the others."""
RATE = 0.0003
"""The learning rate with which a trained model goes on: a third of a new one's."""


def equal_time(
    data: str,
    cells: Sequence[str],
    overrides: Sequence[str],
    folder: Path,
    *,
    minutes: float | None = None,
    steps: int | None = None,
) -> Iterator[Row]:
    """For each cell two rows: tokens per second in training, and validation perplexity in the end.

    The first cell is the peer of the others. Each trains for so many minutes, or updates: whole
    runs as `elman train lm` makes them, two layers unless `overrides` say otherwise.
    """
    first: Mapping[str, float] | None = None
    for cell in cells:
        resolved = resolve(
            "lm",
            [data],
            overrides=["model.num_layers=2", *overrides, f"model.cell={cell}"],
            minutes=minutes,
            steps=steps,
            seed=1,
        )
        found, _ = _trained(resolved.config, folder / cell)
        first = first or found
        settings = {
            "cell": cell,
            "steps": found["steps"],
            "seconds": found["seconds"],
            "beside": cells[0],
        }
        speed, quality = found["tokens_per_second"], found["perplexity"]
        yield more_is_better(
            f"{cell}: training", speed, first["tokens_per_second"], "tokens/s", **settings
        )
        yield less_is_better(
            f"{cell}: validation", quality, first["perplexity"], "perplexity", **settings
        )


def regimes(
    data: Sequence[str],
    valid: Sequence[str],
    names: Sequence[str],
    overrides: Sequence[str],
    folder: Path,
    *,
    first_steps: int,
    steps: int,
    device: str = "auto",
) -> Iterator[Row]:
    """For each of the `REGIMES` named: what an update costs, and what so many of them change.

    A translator is trained by teacher forcing for `first_steps` updates; then each regime goes on
    from there for `steps`, at a smaller rate, by itself, and is validated at the end, whether it
    has become better or worse: surprisal of the true translations, BLEU and chrF of greedy ones.
    Teacher forcing goes on too, and is the peer of the others.
    """

    def config(length: int, *settings: str) -> RunConfig:
        # Attention after the step, fed nowhere: reading the truth is one pass, as it should be.
        usual = ("model.decoder.input_feeding=false", f"training.validate_every={length}")
        return resolve(
            "translator",
            data,
            valid=valid,
            overrides=[*usual, *overrides, *settings],
            steps=length,
            seed=1,
            device=device,
        ).config

    begun = folder / "begun"
    _, last = _trained(config(first_steps), begun, device=device)
    yield from _quality("the beginning", last, None, {"steps": first_steps})
    peer: tuple[float, Report] | None = None
    for name in names:
        further = config(
            steps, f"optimiser.learning_rate={RATE}", "schedule.warmup_steps=0", *REGIMES[name]
        )
        found, last = _trained(
            further, folder / name.replace(" ", "-"), device=device, begin_with=begun
        )
        milliseconds = 1000 * found["tokens"] / found["tokens_per_second"] / found["steps"]
        peer = peer or (milliseconds, last)
        told = {"regime": name, "steps": steps, "first_steps": first_steps, "beside": names[0]}
        yield less_is_better(f"{name}: an update", milliseconds, peer[0], "ms", **told)
        yield from _quality(name, last, peer[1], told)


def pictures(
    table: str,
    test: str,
    attempts: Sequence[str],
    overrides: Sequence[str],
    folder: Path,
    *,
    num_seeds: int,
) -> Iterator[Row]:
    """A captioner beside the same one blind: what sentences gain by the pictures being seen.

    Each of the two is trained as `overrides` say, and once more for every setting of `attempts`,
    from as many seeds. For each of them the attempt with the least surprisal on what is held out
    of `table` is taken, a mean over seeds, and `test` is looked at with that one alone. Rows are
    means over seeds; their settings have the single figures.
    """
    captions = read_captions(one_table(test))
    found: list[dict[str, list[float]]] = []
    taken: list[str] = []
    for sight in ("model.blind=false", "model.blind=true"):
        by_attempt: dict[str, list[tuple[float, Path]]] = {}
        for attempt in ("", *attempts):
            settings = [*overrides, sight, *([attempt] if attempt else [])]
            by_attempt[attempt] = []
            for seed in range(1, num_seeds + 1):
                config = resolve("captioner", [table], overrides=settings, seed=seed).config
                out = folder / f"{sight}-{len(by_attempt)}-{seed}"
                summary, _ = _trained(config, out)
                by_attempt[attempt].append((summary["nats_per_token"], out))
        best = min(by_attempt, key=lambda name: fmean(nats for nats, _ in by_attempt[name]))
        taken.append(best)
        figures: dict[str, list[float]] = {}
        for _, out in by_attempt[best]:
            run = open_run(out)
            encoded = encode_captions(captions, run.tokenizer, run.config.model)
            for name, value in measure(run.model, run.tokenizer, encoded).items():
                figures.setdefault(name, []).append(value)
        found.append(figures)
    seeing, unseeing = found
    for name, what, row in (
        ("nats_per_token", "surprisal", less_is_better),
        ("cider", "CIDEr", more_is_better),
        ("bleu", "BLEU", more_is_better),
    ):
        if name in seeing:
            told = {
                "seeing": seeing[name],
                "blind": unseeing[name],
                "seeing_deviation": pstdev(seeing[name]),
                "blind_deviation": pstdev(unseeing[name]),
                "seeing_setting": taken[0],
                "blind_setting": taken[1],
                "beside": "the same, blind",
            }
            unit = "nats" if name == "nats_per_token" else what
            yield row(what, fmean(seeing[name]), fmean(unseeing[name]), unit, **told)


def _quality(
    name: str, last: Report, peer: Report | None, told: Mapping[str, object]
) -> Iterator[Row]:
    """The figures of a last validation as rows."""
    assert last.valid_loss is not None
    other = None if peer is None else peer.valid_loss
    yield less_is_better(f"{name}: surprisal", last.valid_loss, other, "nats", **told)
    metrics, others = last.valid_metrics or {}, (peer and peer.valid_metrics) or {}
    for metric, unit in (("bleu", "BLEU"), ("chrf", "chrF")):
        if metric in metrics:
            yield more_is_better(
                f"{name}: {unit}", metrics[metric], others.get(metric), unit, **told
            )


def _trained(
    config: RunConfig, folder: Path, *, device: str = "auto", begin_with: Path | None = None
) -> tuple[Mapping[str, float], Report]:
    """The summary of a run, and its last validation."""
    found: Mapping[str, float] | None = None
    last: Report | None = None
    for report in train(config, folder, device=device, begin_with=begin_with):
        found = report.summary or found
        last = report if report.kind == "valid" else last
    if found is None or last is None:
        raise ElmanError("the training was stopped", "start again")
    return found, last
