"""Commands that compare what models learn: regimes, inputs, choices of settings."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from elman.base.errors import UsageError
from elman.bench.commands.options import BySpeed, Curve, Kept, Repeat, Within, check_cuda
from elman.bench.measuring import work_folder
from elman.bench.rows import note, show
from elman.bench.sizes import parse_threads
from elman.terminal.console import result, result_json
from elman.terminal.options import (
    Device,
    Epochs,
    Json,
    Minutes,
    Settings,
    Steps,
    argument,
    option,
    picture,
)
from elman.terminal.options import Threads as TrainingThreads


def regimes(
    data: Annotated[
        list[str] | None,
        argument("[SOURCE TARGET]", "Two text files, line by line. [default: built-in kjv-asv]"),
    ] = None,
    valid: Annotated[
        tuple[str, str] | None,
        option("SOURCE TARGET", "Two files to validate on; else held out."),
    ] = None,
    first_steps: Annotated[int, option("N", "Updates by teacher forcing at first.", min=1)] = 4000,
    steps: Annotated[int, option("N", "Updates of each regime.", min=1)] = 1000,
    only: Annotated[
        str | None, option("NAME,...", "Only these regimes; the first is the peer.")
    ] = None,
    settings: Settings = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare training regimes of a translator: cost and effect.

    All continue from the same model, trained by teacher forcing, which continues too as the peer of
    the others. A ratio above 1 means that a regime is faster or better than the peer.
    """
    from elman.bench.training import compare_regimes, parse_regimes

    names = parse_regimes(only)
    with work_folder() as folder:
        rows = compare_regimes(
            *(data or (), names, settings or (), folder),
            valid=valid or (),
            first_steps=first_steps,
            steps=steps,
            device=device,
        )
        show(rows, json=json)


def pictures(
    table: Annotated[str, argument("TABLE", "Images and sentences.")],
    test: Annotated[str, option("TABLE", "Images and sentences to test on.")],
    seeds: Annotated[int, option("N", "Runs of each model.", min=1)] = 3,
    attempts: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Also try this setting; each model takes its better one. May be repeated.",
            "--try",
        ),
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Compare a captioner with one that sees no pictures.

    Means over seeds of surprisal, CIDEr and BLEU. Each model takes the setting that is best on
    sentences held out of TABLE; --test has no part in that choice.
    """
    from elman.bench.training import compare_pictures

    tried = ("", *(attempts or ()))
    with work_folder() as folder:
        show(compare_pictures(table, test, tried, settings or (), folder, seeds), json=json)


def elmo(
    file: Annotated[
        str, argument("[FILE]", "Text, one sentence per line. [default: python-docs]")
    ] = "python-docs",
    recipes: Annotated[
        str | None,
        option("NAME,...", "Recipes to measure. [default: elmo-tiny, on a GPU elmo-small too]"),
    ] = None,
    sentences: Annotated[int, option("N", "Read the first N sentences.", min=1)] = 1000,
    threads: Curve = None,
    repeat: Repeat = 3,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure contextual word vectors: words per second.

    The peer is a plain stack of nn.LSTM over the same sentences, padded, with every token through
    the character convolution: stepped through time, and run over whole sequences. Weights are
    random, without clipping, which torch's layers do not have.
    """
    from elman.bench.elmo import measure
    from elman.bench.recurrent import over_threads
    from elman.runs.machine import machine
    from elman.text.sources import expand, file_lines
    from elman.text.words import split_words

    where = machine(device)
    names = (recipes or ("elmo-tiny,elmo-small" if where.is_gpu else "elmo-tiny")).split(",")
    lines = (line for path in expand([file]) for line in file_lines(path))
    texts = list(islice((words for words in map(split_words, lines) if words), sentences))
    if not texts:
        raise UsageError(f"{file} has no words", "name a file with some text in it")
    note(f"{len(texts):,} sentences of {file}, {where.description}")
    chosen = [name.strip() for name in names]
    found = partial(measure, chosen, texts, device=where.device, repeat=repeat)
    show(over_threads(parse_threads(threads), found), json=json)


def lifts(
    embeddings: Annotated[
        str | None,
        option(
            "MODEL|FILE",
            "A run folder (elmo, lm), published ELMo weights, or a file of word vectors. "
            "Without it: show or continue the comparison in --out.",
        ),
    ] = None,
    tagger: Annotated[
        list[str] | None,
        option("NAME=TRAIN,VALID,TEST", "A tagging task and its files; may be repeated."),
    ] = None,
    classifier: Annotated[
        list[str] | None,
        option(
            "NAME=TRAIN,VALID,TEST|NAME=DATA",
            "A classification task; each seed holds another fifth of DATA out. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, option("N", "Train each arm with seeds 1 to N.", min=1)] = 3,
    jobs: Annotated[int, option("N", "Runs at a time, a process each.", min=1)] = 1,
    minutes: Minutes = None,
    epochs: Epochs = None,
    steps: Steps = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        option(
            "DIR", "Keep the runs here; finished ones are reused. [default: a temporary folder]"
        ),
    ] = None,
    plot: Annotated[Path | None, picture("Draw the learnt layer weights")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare tasks with and without pre-trained embeddings.

    Prints the mean and spread of test figures over seeds. The two arms differ only in the
    embeddings. Settings of model.embeddings apply to the arm that has them. In the same --minutes a
    model with embeddings makes fewer updates; --epochs and --steps compare models that have read as
    much text.
    """
    from elman.bench import lifts as bench

    if embeddings is None:
        if out is None or not (out / bench.PLAN_FILE).is_file():
            raise UsageError("no embeddings were given", "name them with --embeddings")
        if tagger or classifier or minutes or epochs or steps or settings:
            raise UsageError(
                "a kept comparison has its own settings", "give --embeddings to start another"
            )
        plan = bench.LiftPlan.read(out)
    else:
        lengths = {"--minutes": minutes, "--epochs": epochs, "--steps": steps}
        tasks = (tagger or (), classifier or ())
        plan = bench.make_plan(embeddings, *tasks, seeds, lengths, settings or (), device)
    with work_folder(out) as folder:
        rows = bench.measure(plan, folder, jobs=jobs)
    if plot is not None:
        bench.draw(rows, plot)
    if json:
        for row in rows:
            result_json(row)
        return
    result(bench.lift_table(rows))
    if any(row["layer_weights"] for row in rows):
        result("\n" + bench.weight_table(rows))


def ablations(
    train: Annotated[str, argument("TRAIN", "Text of words between spaces, a sentence per line.")],
    valid: Annotated[str, option("FILE", "Text to validate on.")],
    test: Annotated[str, option("FILE", "Text that the figures are of.")],
    parts: Annotated[
        str | None, option("NAME,...", "Only these parts, by their names in the table.")
    ] = None,
    lines: Annotated[int, option("N", "Train on the first N lines.", min=8)] = 2000,
    steps: Annotated[int, option("N", "Updates of each run.", min=1)] = 800,
    seeds: Annotated[int, option("N", "Train with seeds 1 to N.", min=1)] = 2,
    threads: TrainingThreads = None,
    settings: Settings = None,
    out: Kept = None,
    json: Json = False,
) -> None:
    """Measure what each part of published recipes brings.

    A small LSTM is trained with and without each part, at equal updates, on a text that is short
    enough to be read several times. Prints the test perplexity without and with it, and the mean
    change with its standard deviation over seeds. DIR gets ablations.jsonl, a line for each run,
    and table.md.
    """
    from elman.bench import ablations as bench

    names = bench.parse_parts(parts)
    given = (lines, steps, seeds, tuple(settings or ()))
    with work_folder(out) as folder:
        rows = bench.measure(bench.AblationPlan((train, valid, test), names, *given), folder)
    if json:
        for row in rows:
            result_json(row)
        return
    result(bench.ablation_table(rows))


def automatic(
    texts: Annotated[
        list[str] | None,
        argument("[NAME=TRAIN,VALID...]", "Texts, files or built-in names. [default: python-docs]"),
    ] = None,
    minutes: Annotated[str, option("M,...", "Minutes of a run.")] = "1,5,30",
    units: Annotated[str, option("NAME,...", "Units of text: char, word.")] = "char,word",
    alternatives: Annotated[int, option("N", "Alternatives, of 10.", min=0, max=10)] = 10,
    only: Annotated[
        list[str] | None,
        option("NAME", "Measure only this choice: automatic, or a row's name. May be repeated."),
    ] = None,
    jobs: Annotated[int, option("N", "Runs at a time, each on its own cores.", min=1)] = 1,
    threads: Annotated[int, option("N", "Threads and cores of a run.", min=1)] = 2,
    within: Within = None,
    by_speed: BySpeed = False,
    train_on: Annotated[
        Literal["cpu", "cuda"] | None,
        option("cpu|cuda", "With --by-speed: train here in float32, at the speeds of --device."),
    ] = None,
    renew: Annotated[bool, option(None, "Measure the automatic choices again.")] = False,
    out: Kept = None,
    seed: Annotated[int, option("N", "Random seed.", min=0)] = 1,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare automatic settings with fixed alternatives.

    Every text is read as characters and as words, for each number of minutes. A ratio of 0.97 means
    that the automatic choice's perplexity is 3 % behind that of the best alternative. DIR gets
    runs.jsonl, a line for each run, and table.md; with --by-speed, also speeds.jsonl, to which
    --within 0 adds the speeds that it lacks and trains nothing.
    """
    from elman.bench import automatic as bench
    from elman.runs.machine import machine

    check_cuda(train_on, "--train-on")
    where = "gpu" if machine(device).is_gpu else "cpu"
    plan = bench.make_plan(
        *(texts or ["python-docs"], units, minutes, alternatives, only or ()),
        *(where, seed, by_speed, train_on or ""),
    )
    with work_folder(out) as folder:
        rows = bench.measure(plan, folder, jobs=jobs, threads=threads, within=within, renew=renew)
    show(bench.compared(rows), json=json)
