"""The commands of `elman bench` and their options; what they measure is imported when they run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from elman.base.errors import UsageError
from elman.bench import sizes as usual
from elman.bench.faults.command import faults
from elman.bench.measuring import work_folder
from elman.bench.rows import note, show
from elman.bench.sizes import (
    ALL_CELLS,
    DEFAULT_CELLS,
    TRAINED_CELLS,
    parse_cells,
    parse_count,
    parse_names,
    parse_sizes,
)
from elman.terminal.console import result, result_json, talk
from elman.terminal.options import (
    Device,
    Epochs,
    Json,
    Minutes,
    Settings,
    Steps,
    argument,
    option,
)

UNITS = 512
"""Units of the model that `serve` makes."""

Repeat = Annotated[int, option("N", "Rounds; peers take turns.", min=1)]
Threads = Annotated[int | None, option("N", "Threads. [default: one per core]", min=1)]
Cells = Annotated[str, option("NAME,...", f"Cells, of {ALL_CELLS}.")]
Sizes = Annotated[
    str | None,
    option(
        "LxHxB[xV],...",
        "Layers, hidden units, batch and vocabulary, as in 1x256x32,2x200x20x10000.",
    ),
]
BenchDevice = Annotated[Literal["cpu", "cuda"], option("cpu|cuda", "Where to measure.")]


def kernels(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 7,
    plot: Annotated[Path | None, option("FILE", "Draw it over units, batch and length.")] = None,
    device: BenchDevice = "cpu",
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        option("bfloat16|float16|float32", "Precision on cuda. [default: bfloat16]"),
    ] = None,
    json: Json = False,
) -> None:
    """Time one recurrent layer beside torch's.

    Microseconds per time step, forward and backward. Errors are relative distances from the same
    computation in float64. The peer of minGRU, minLSTM and SRU is the papers' scan in log space. On
    cuda: lstm and gru, called one by one and replayed from a CUDA graph.
    """
    chosen = parse_cells(cells)
    if device == "cpu" and dtype not in (None, "float32"):
        raise UsageError("--dtype needs --device cuda", "on the CPU layers compute in float32")
    _check_cuda(device)
    if device == "cuda":
        chosen = [cell for cell in chosen if cell in ("lstm", "gru")]
        if not chosen:
            raise UsageError("only lstm and gru are measured on cuda", "leave out --cells")
    on_cpu = device == "cpu"
    measured = parse_sizes(sizes, usual.LAYERS if on_cpu else usual.GPU_LAYERS)
    dtype = dtype or ("float32" if on_cpu else "bfloat16")
    from elman.bench.kernels import measure
    from elman.bench.recurrent import use_threads

    with use_threads(threads):
        rows = show(measure(chosen, measured, repeat, device, dtype), json=json)
    if plot is not None:
        from elman.bench.plot import draw

        draw(rows, plot)
        talk(f"wrote {plot}")


def step(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 5,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Time training steps beside the same model in plain torch.

    Embedding, layers, output layer, gradients, clipping and Adam: tokens per second. The peer of
    cells that torch does not have is its LSTM of the same width. On cuda: an AWD-LSTM in bfloat16
    with all its dropouts, beside the same model on torch's layers.
    """
    chosen = parse_cells(cells)
    if device == "cuda" and cells not in (DEFAULT_CELLS, "lstm"):
        raise UsageError("only lstm is measured on cuda", "leave out --cells")
    _check_cuda(device)
    from elman.bench import step as bench
    from elman.bench.recurrent import use_threads

    with use_threads(threads):
        if device == "cuda":
            rows = bench.on_gpu(parse_sizes(sizes, usual.GPU_STEPS), repeat)
        else:
            rows = bench.on_cpu(chosen, parse_sizes(sizes, usual.STEPS), repeat)
        show(rows, json=json)


def sentences(
    tasks: Annotated[
        str, option("NAME,...", "Tasks, of translator, tagger, classifier and elmo.")
    ] = "translator,tagger,classifier,elmo",
    threads: Threads = None,
    repeat: Repeat = 5,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Time training steps on sentences beside plain torch.

    Batches of six lengths, Adam, clipping: words or target tokens per second. The peer has the same
    weights in nn.LSTM over packed sequences, and nn.LSTMCell in a loop for a decoder. On cuda in
    bfloat16, ours from CUDA graphs and once without.
    """
    _check_cuda(device)
    from elman.bench import sentences as bench
    from elman.bench.recurrent import use_threads

    chosen = parse_names(tasks, tuple(bench.TASKS), "task")
    with use_threads(threads):
        show(bench.measure(chosen, repeat, device), json=json)


def generate(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Time generation beside a loop over torch's layers.

    Tokens per second of one stream, in float32 and with int8 weights.
    """
    from elman.bench.generate import measure
    from elman.bench.recurrent import use_threads

    with use_threads(threads):
        show(measure(parse_cells(cells), parse_sizes(sizes, usual.STREAMS), repeat), json=json)


def equal_time(
    file: Annotated[str, argument("FILE", "Text to train on.")],
    minutes: Annotated[float, option("M", "Minutes for each cell.")] = 2.0,
    steps: Annotated[
        int | None, option("N", "Train for N updates instead of minutes.", min=1)
    ] = None,
    cells: Annotated[
        str | None, option("NAME,...", "Cells, such as lstm,qrnn. [default: all but rnn]")
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Compare cells trained for the same time.

    Training speed and validation perplexity; the first cell is the peer of the others. Settings are
    the automatic ones for the text with two layers, which cells that train in parallel over time
    need.
    """
    from elman.bench.training import compare_cells

    chosen = list(TRAINED_CELLS)
    if cells is not None:
        chosen = parse_names(cells, TRAINED_CELLS, "cell")
    length = {"steps": steps} if steps else {"minutes": minutes}
    with work_folder() as folder:
        show(compare_cells(file, chosen, settings or (), folder, **length), json=json)


def ngram(
    files: Annotated[
        list[str] | None,
        argument(
            "[FILE...]", "Text of words between spaces. [default: sampled from built-in corpora]"
        ),
    ] = None,
    tokens: Annotated[str, option("N", "Tokens to count.")] = "1M",
    order: Annotated[int, option("N", "Length of the n-grams.", min=2)] = 5,
    repeat: Repeat = 3,
    kenlm: Annotated[
        Path | None, option("DIR", "Folder of KenLM's programs. [default: PATH]")
    ] = None,
    lmplz_memory: Annotated[
        str, option("SIZE", "Memory for lmplz (-S); its own default is 80%.")
    ] = "1G",
    curve: Annotated[
        str | None, option("N,N...", "Measure only our cost per token at these sizes.")
    ] = None,
    threads: Annotated[
        str | None, option("N,N...", "Measure only our times with these numbers of threads.")
    ] = None,
    folder: Annotated[
        Path | None, option("DIR", "Keep all files here. [default: a temporary folder]")
    ] = None,
    json: Json = False,
) -> None:
    """Estimate and score n-gram models beside KenLM.

    Text to an ARPA file, text to a file that answers queries, and the speed of scoring. A ratio
    above 1 means that Elman is faster or uses less.
    """
    from elman.bench import ngram as bench

    counts = [parse_count(size) for size in (curve or tokens).split(",")]
    if len(counts) > 1 and not curve:
        raise UsageError("--tokens takes one number", "give several to --curve")
    with work_folder(folder) as at:
        if curve:
            rows = bench.curve(files or (), at, counts, order, repeat)
        elif threads:
            numbers = [parse_count(number) for number in threads.split(",")]
            rows = bench.scaling(files or (), at, counts[0], order, repeat, numbers)
        else:
            peer = bench.KenLM.find(kenlm)
            rows = bench.compare(files or (), at, counts[0], order, repeat, peer, lmplz_memory)
        show(rows, json=json)


def serve(
    model: Annotated[
        str | None,
        argument(
            "[MODEL]",
            "A language model. [default: one untrained layer of --units over characters]",
        ),
    ] = None,
    units: Annotated[
        int | None, option("N", f"Units of the default model. [default: {UNITS}]", min=1)
    ] = None,
    streams: Annotated[str, option("N,...", "Numbers of concurrent continuations.")] = "1,8,64,256",
    tokens: Annotated[int, option("N", "Tokens of each.", min=1)] = 128,
    threads: Annotated[int, option("N", "Threads of the server; 0: half the cores.", min=0)] = 0,
    workers: Annotated[
        int | None, option("N", "Instead, measure N workers beside one process.", min=1)
    ] = None,
    soak: Annotated[
        float | None, option("M", "Instead, run clients that misbehave for M minutes.")
    ] = None,
    repeat: Repeat = 3,
    json: Json = False,
) -> None:
    """Time concurrent requests beside one request at a time.

    Tokens per second, and milliseconds to the first token, over HTTP. The peer's first token is
    that of the request in the middle of the queue. With --soak, some clients disconnect and some
    read slowly: rows count lost streams and compare memory late and early. With --workers, both
    servers answer the same requests in turns; the peer's memory is that of as many servers.
    """
    if model is not None and units is not None:
        raise UsageError("--units is for the default model", "leave out MODEL or --units")
    if soak is not None and workers is not None:
        raise UsageError("--soak and --workers measure different things", "drop one of them")
    from elman.bench import serving
    from elman.bench.soak import measure_soak

    units = units or UNITS
    name = model or f"1x{units}"
    numbers = [parse_count(number) for number in streams.split(",")]
    with work_folder() as at:
        run = Path(model) if model else serving.train_default(units, at / "run")
        end_ids = [] if soak is not None else serving.end_ids(run)
        if workers is not None:
            with (
                serving.running_server(run, threads, workers) as ours,
                serving.running_server(run, threads) as peer,
            ):
                settings = {"workers": workers, "model": name}
                show(
                    serving.measure_workers(
                        ours, peer, numbers, tokens, repeat, end_ids, **settings
                    ),
                    json=json,
                )
            return
        with serving.running_server(run, threads) as (address, process):
            if soak is not None:
                rows = measure_soak(address, process, soak, model=name)
            else:
                rows = serving.measure(address, numbers, tokens, repeat, end_ids, name)
            show(rows, json=json)


def load(
    model: Annotated[
        str | None,
        argument("[MODEL]", "A run folder with weights. [default: one layer of --units]"),
    ] = None,
    units: Annotated[
        int | None, option("N", "Units of the default model. [default: 1760: 100 MB]", min=1)
    ] = None,
    repeat: Repeat = 15,
    json: Json = False,
) -> None:
    """Time opening a run folder with and without checksums.

    Milliseconds, with both files in the cache of the operating system. A ratio of 0.98 means that
    verification takes 2 % of the time.
    """
    if model is not None and units is not None:
        raise UsageError("--units is for the default model", "leave out MODEL or --units")
    from elman.bench.loading import measure
    from elman.bench.serving import train_default

    with work_folder() as at:
        run = Path(model) if model else train_default(units or 1760, at / "run")
        show(measure(run, at / "copy", repeat), json=json)


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
    threads: Threads = None,
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
    from elman.bench.recurrent import use_threads
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
    with use_threads(threads):
        chosen = [name.strip() for name in names]
        show(measure(chosen, texts, device=where.device, repeat=repeat), json=json)


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
    plot: Annotated[
        Path | None, option("FILE", "Draw the learnt layer weights (.png, .svg, .pdf).")
    ] = None,
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
    within: Annotated[
        float | None, option("M", "Start no run that would end later than in M minutes.")
    ] = None,
    renew: Annotated[bool, option(None, "Measure the automatic choices again.")] = False,
    out: Annotated[
        Path | None,
        option(
            "DIR", "Keep the figures here; finished runs are reused. [default: a temporary folder]"
        ),
    ] = None,
    seed: Annotated[int, option("N", "Random seed.", min=0)] = 1,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare automatic settings with fixed alternatives.

    Every text is read as characters and as words, for each number of minutes. A ratio of 0.97 means
    that the automatic choice's perplexity is 3 % behind that of the best alternative. DIR gets
    runs.jsonl, a line for each run, and table.md.
    """
    from elman.bench import automatic as bench
    from elman.runs.machine import machine

    where = "gpu" if machine(device).is_gpu else "cpu"
    chosen = texts or ["python-docs"]
    plan = bench.make_plan(chosen, units, minutes, alternatives, only or (), where, seed)
    with work_folder(out) as folder:
        rows = bench.measure(plan, folder, jobs=jobs, threads=threads, within=within, renew=renew)
    show(bench.compared(rows), json=json)


def ranks(
    processes: Annotated[int, option("N", "Processes, and threads of the peer.", min=2)] = 2,
    sizes: Sizes = "1x256x64",
    steps: Annotated[int, option("N", "Updates of each run.", min=2)] = 60,
    repeat: Repeat = 3,
    weights: Annotated[
        str | None, option("N", "Only compute: weights of the model, such as 24M.")
    ] = None,
    update_ms: Annotated[
        float | None, option("MS", "With --weights: time of an update of one process.")
    ] = None,
    gigabytes: Annotated[
        float | None, option("GB", "With --weights: GB/s that a process can send.")
    ] = None,
    json: Json = False,
) -> None:
    """Train in several processes beside one of as many threads.

    torchrun starts the processes, of one thread each, on this machine. The efficiency of 8 and 64
    processes is computed from the bytes of the gradients and the bandwidth measured here, or from
    those that are given.
    """
    given = [value is not None for value in (weights, update_ms, gigabytes)]
    if any(given) and not all(given):
        raise UsageError(
            "--weights, --update-ms and --gigabytes belong together", "give all three, or none"
        )
    from elman.bench import ranks as bench

    if weights is not None and update_ms is not None and gigabytes is not None:
        if update_ms <= 0 or gigabytes <= 0:
            raise UsageError("times and rates must be above 0", "see --help")
        num_bytes = bench.BYTES_PER_WEIGHT * parse_count(weights)
        show(bench.computed(num_bytes, update_ms / 1e3, gigabytes), json=json)
        return
    with work_folder() as folder:
        for number, size in enumerate(parse_sizes(sizes, usual.STEPS)):
            place = folder / str(number)
            show(bench.measure(size, processes, steps, repeat, place), json=json)


def _check_cuda(device: str) -> None:
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("there is no CUDA device here", "leave out --device")


app = typer.Typer(
    help="Measure speed and quality beside other implementations.", no_args_is_help=True
)
COMMANDS: list[Callable[..., None]] = [
    *(kernels, step, sentences, generate, equal_time, ngram),
    *(ranks, serve, load, regimes, pictures, elmo, lifts, automatic, faults),
]
for command in COMMANDS:
    app.command()(command)
