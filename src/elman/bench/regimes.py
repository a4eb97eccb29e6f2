"""`elman bench regimes`: what an update of each training regime costs, and what it changes.

A translator is trained by teacher forcing. Each regime continues from that model at a lower
learning rate and is validated at the end, better or worse: surprisal of the reference translations,
BLEU and chrF of greedy ones. Teacher forcing continues too, as the peer of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from elman.base.errors import UsageError, nearest
from elman.bench.measuring import Row, less_is_better, more_is_better, train_run
from elman.bench.shared import progress, show, work_folder
from elman.terminal.options import Device, Json, Settings

if TYPE_CHECKING:
    from elman.runs.trained_run import TrainedRun
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


def regimes(
    data: Annotated[
        list[str] | None,
        Argument(
            metavar="[SOURCE TARGET]",
            help="Two text files, line by line. [default: built-in kjv-asv]",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        tuple[str, str] | None,
        Option(metavar="SOURCE TARGET", help="Two files to validate on; else held out."),
    ] = None,
    first_steps: Annotated[
        int, Option(min=1, metavar="N", help="Updates by teacher forcing at first.")
    ] = 4000,
    steps: Annotated[int, Option(min=1, metavar="N", help="Updates of each regime.")] = 1000,
    only: Annotated[
        str | None, Option(metavar="NAME,...", help="Only these regimes; the first is the peer.")
    ] = None,
    settings: Settings = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a translator under each training regime: cost of an update, and its effect.

    All continue from the same model, trained by teacher forcing, which continues too as the peer of
    the others. A ratio above 1 means that a regime is faster or better than the peer.
    """
    names = list(REGIMES) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in REGIMES:
            raise UsageError(f"there is no regime '{name}' to measure", nearest(name, REGIMES))

    def config(length: int, *more: str) -> TrainedRun:
        from elman.base.config import parse_overrides
        from elman.recipes.resolve import resolve

        # Without input feeding, teacher forcing reads the target in one pass, as it should.
        usual = ("model.decoder.input_feeding=false", f"training.validate_every={length}")
        config: TrainedRun = resolve(
            "translator",
            data or (),
            valid=valid or (),
            settings=parse_overrides([*usual, *(settings or ()), *more]),
            steps=length,
            seed=1,
            device=device,
        ).config
        return config

    def compare() -> Iterator[Row]:
        begun = folder / "begun"
        _, last = train_run(config(first_steps), begun, device=device)
        yield from _quality("the beginning", last, None, {"steps": first_steps})
        peer: tuple[float, Report] | None = None
        continued = (f"optimiser.learning_rate={LEARNING_RATE}", "schedule.warmup_steps=0")
        for name in names:
            out = folder / name.replace(" ", "-")
            further = config(steps, *continued, *REGIMES[name])
            found, last = train_run(further, out, device=device, begin_with=begun)
            milliseconds = 1000 * found["tokens"] / found["tokens_per_second"] / found["steps"]
            peer = peer or (milliseconds, last)
            about = {"regime": name, "steps": steps, "first_steps": first_steps, "beside": names[0]}
            yield less_is_better(f"{name}: an update", milliseconds, peer[0], "ms", **about)
            yield from _quality(name, last, peer[1], about)

    with work_folder() as folder:
        show(progress(compare()), json=json)


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
