"""`elman bench lifts`: what pre-trained embeddings do for tasks."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from elman.base.errors import UsageError
from elman.terminal.console import SHARES, result, result_json, spoken, table, talk
from elman.terminal.options import Device, Epochs, Json, Minutes, Settings, Steps

if TYPE_CHECKING:
    from elman.bench.lifts import Lift


def lifts(
    embeddings: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|FILE",
            help="A run folder (elmo, lm), published ELMo weights, or a file of word vectors. "
            "Without it: what the folder --out was made with.",
        ),
    ] = None,
    tagger: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TRAIN,VALID,TEST", help="A tagging task and its files; may be repeated."
        ),
    ] = None,
    classifier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TRAIN,VALID,TEST|NAME=DATA",
            help="A classification task; of DATA alone a fifth is held out, another for each "
            "seed. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="How often each is trained, in seeds 1 to N.")
    ] = 3,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Runs at a time, in processes of their own.")
    ] = 1,
    minutes: Minutes = None,
    epochs: Epochs = None,
    steps: Steps = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the runs here; those that are finished are not made again. "
            "[default: nowhere]",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the learnt weights of layers (.png, .svg, .pdf)."),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train tasks with and without pre-trained embeddings: mean and spread over seeds.

    The two differ in the embeddings alone; figures are those of the test. Settings of
    model.embeddings hold where there are some. In the same --minutes a model with embeddings makes
    fewer updates: --epochs and --steps compare what it has learnt from as much text.
    """
    from elman.bench.lifts import PLAN_FILE, LiftTask, Plan, measure

    if embeddings is None:
        if out is None or not (out / PLAN_FILE).is_file():
            raise UsageError("it is not said which embeddings", "name them with --embeddings")
        if tagger or classifier or minutes or epochs or steps or settings:
            raise UsageError(
                "a comparison that is there keeps its own settings", "give --embeddings as well"
            )
        _show(measure(Plan.kept(out), out, jobs=jobs, note=_note), plot, json)
        return
    tasks = [LiftTask.of("tagger", text) for text in tagger or ()]
    tasks += [LiftTask.of("classifier", text) for text in classifier or ()]
    if not tasks:
        raise UsageError(
            "there is no task to lift", "add --tagger upos=train.conllu,dev.conllu,test.conllu"
        )
    if len({task.name for task in tasks}) < len(tasks):
        raise UsageError("two tasks have the same name", "give each a name of its own")
    lengths = {"--minutes": minutes, "--epochs": epochs, "--steps": steps}
    given = [(name, str(value)) for name, value in lengths.items() if value is not None]
    if len(given) > 1:
        raise UsageError(
            "the length of the runs was given twice", "give one of --minutes, --epochs, --steps"
        )
    plan = Plan(
        str(Path(embeddings).expanduser().resolve()),
        tuple(tasks),
        seeds,
        tuple(word for pair in given for word in pair),
        tuple(settings or ()),
        device,
    )
    place = nullcontext(out) if out else tempfile.TemporaryDirectory(prefix="elman-bench-")
    with place as at:
        found = measure(plan, Path(at), jobs=jobs, note=_note)
    _show(found, plot, json)


def _note(text: str) -> None:
    talk(f"· {text}")


def _show(found: list[Lift], plot: Path | None, json: bool) -> None:
    if plot is not None:
        _draw(found, plot)
    if json:
        for lift in found:
            result_json(lift.to_dict())
        return
    result(_figures(found))
    if any(lift.layer_weights for lift in found):
        result("")
        result(_weights(found))


def _figures(found: list[Lift]) -> str:
    """The table: task, figure, without, with, lift; each as mean and deviation over the seeds.

    Then the updates of a run, of both arms where these differ.
    """

    from elman.bench.lifts import ARMS, spread

    def told(lift: Lift, values: list[float], sign: str = "") -> str:
        share = lift.metric in SHARES
        value, deviation = (100 * x if share else x for x in (mean(values), spread(values)))
        return f"{value:{sign}.2f}" + (f" ± {deviation:.2f}" if len(values) > 1 else "")

    rows = [
        (
            lift.task,
            spoken(lift.metric) + (" %" if lift.metric in SHARES else ""),
            told(lift, lift.without),
            told(lift, lift.with_embeddings),
            told(lift, lift.lifts, "+"),
            " / ".join(dict.fromkeys(f"{mean(lift.updates[arm]):,.0f}" for arm in ARMS)),
        )
        for lift in found
    ]
    return table(rows, ("task", "test", "without", "with", "lift", "updates"))


def _weights(found: list[Lift]) -> str:
    """What each task has learnt of the layers, bottom first: means over the seeds."""
    rows = [
        (
            lift.task,
            place,
            " ".join(f"{mean(shares):.3f}" for shares in zip(*runs, strict=True)),
            f"{mean(lift.scales[place]):.3f}",
        )
        for lift in found
        for place, runs in lift.layer_weights.items()
    ]
    return table(rows, ("task", "enters at", "weights of the layers, bottom first", "scale"))


def _draw(found: list[Lift], path: Path) -> None:
    from elman.evaluate.pictures import draw_layer_weights

    weights = {
        lift.task + ("" if len(lift.layer_weights) == 1 else f", {place}"): runs
        for lift in found
        for place, runs in lift.layer_weights.items()
    }
    if not weights:
        raise UsageError(
            "there is no mix of layers to draw", "leave model.embeddings.layers at mix"
        )
    draw_layer_weights(weights, path)
