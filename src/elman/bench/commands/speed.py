"""Commands that time models and counting beside other implementations."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from elman.base.errors import UsageError
from elman.bench import sizes as usual
from elman.bench.commands.options import (
    BenchDevice,
    BySpeed,
    Cells,
    Curve,
    Kept,
    Repeat,
    Sizes,
    Threads,
    Within,
    check_cuda,
)
from elman.bench.measuring import work_folder
from elman.bench.rows import show
from elman.bench.sizes import (
    DEFAULT_CELLS,
    TRAINED_CELLS,
    parse_cells,
    parse_count,
    parse_names,
    parse_sizes,
    parse_threads,
)
from elman.terminal.console import talk
from elman.terminal.options import Json, Settings, argument, option, picture
from elman.terminal.options import Threads as TrainingThreads
from elman.terminal.stdin import read_lines


def kernels(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 7,
    plot: Annotated[Path | None, picture("Draw it over units, batch and length")] = None,
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
    check_cuda(device)
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


def scans(
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 7,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Time the scan of minGRU and its like beside those of others.

    h = keep * h + add, forward and backward in float32, microseconds per step, beside the papers'
    scan in log space, jax.lax.associative_scan (where jax is installed) and torch's
    associative_scan. On cuda: called, with torch's compiled, and replayed from a CUDA graph, which
    jax's is not. Errors are relative distances from a loop in float64.
    """
    check_cuda(device)
    measured = parse_sizes(sizes, usual.SCANS if device == "cpu" else usual.GPU_SCANS)
    from elman.bench.recurrent import use_threads
    from elman.bench.scans import measure

    with use_threads(threads):
        show(measure(measured, repeat, device), json=json)


def step(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Curve = None,
    repeat: Repeat = 5,
    device: BenchDevice = "cpu",
    scoring: Annotated[
        bool, option(None, "Measure scoring: the loss without gradients.", "--scoring")
    ] = False,
    json: Json = False,
) -> None:
    """Time training steps beside the same model in plain torch.

    Embedding, layers, output layer, gradients, clipping and Adam: tokens per second. On a CPU, ours
    is in the precision that training.precision=auto chooses, beside the faster of torch in float32
    and bfloat16 (autocast); rows name the processor and the share of its rate in large products.
    The peer of cells that torch does not have is its LSTM of the same width. On cuda: an AWD-LSTM
    in bfloat16 with all its dropouts, beside the same model on torch's layers.
    """
    chosen, numbers = parse_cells(cells), parse_threads(threads)
    if device == "cuda" and scoring:
        raise UsageError("scoring is measured on the CPU", "leave out --device")
    if device == "cuda" and cells not in (DEFAULT_CELLS, "lstm"):
        raise UsageError("only lstm is measured on cuda", "leave out --cells")
    check_cuda(device)
    from elman.bench import step as bench
    from elman.bench.recurrent import over_threads

    if device == "cuda":
        found = partial(bench.on_gpu, parse_sizes(sizes, usual.GPU_STEPS), repeat)
    else:
        measure = bench.scoring if scoring else bench.on_cpu
        found = partial(measure, chosen, parse_sizes(sizes, usual.STEPS), repeat)
    show(over_threads(numbers, found), json=json)


def sentences(
    tasks: Annotated[
        str, option("NAME,...", "Tasks, of translator, tagger, classifier and elmo.")
    ] = "translator,tagger,classifier,elmo",
    updates: Annotated[
        bool, option(None, "Time whole updates of a classifier's run on a CPU.", "--updates")
    ] = False,
    texts: Annotated[
        Path | None, option("TABLE", "Labelled texts for --updates. [default: made texts]")
    ] = None,
    threads: Curve = None,
    repeat: Repeat = 5,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Time training steps on sentences beside plain torch.

    Batches of six lengths, Adam, clipping: words or target tokens per second. The peer has the same
    weights in nn.LSTM over packed sequences, and nn.LSTMCell in a loop for a decoder. On a CPU ours
    is in the precision that training.precision=auto chooses; if that is bfloat16, the peer is the
    faster of float32 and bfloat16. On cuda in bfloat16, ours from CUDA graphs and once without.

    With --updates, updates as `elman train classifier` makes them, batches and dropout included:
    tokens per second by the least time of each batch, by the median round, and per second of
    processor time, which other programs disturb least if --threads is 1.
    """
    check_cuda(device)
    if updates and device == "cuda":
        raise UsageError("--updates measures a CPU", "leave out --device")
    if texts is not None and not updates:
        raise UsageError("--texts is for --updates", "add --updates, or leave --texts out")
    from elman.bench.recurrent import over_threads

    if updates:
        from elman.bench import updates as whole

        show(over_threads(parse_threads(threads), partial(whole.measure, texts, repeat)), json=json)
        return
    from elman.bench import sentences as bench

    chosen, numbers = parse_names(tasks, tuple(bench.TASKS), "task"), parse_threads(threads)
    show(over_threads(numbers, partial(bench.measure, chosen, repeat, device)), json=json)


def beams(
    model: Annotated[
        str | None,
        argument("[MODEL]", "A translator, with --lines. [default: an untrained model]"),
    ] = None,
    lines: Annotated[str | None, option("FILE", "Sentences for MODEL, one per line.")] = None,
    number: Annotated[
        str | None,
        option("N", "Sentences without MODEL. [default: 64; on cuda 1000]", "--sentences"),
    ] = None,
    beam: Annotated[int, option("K", "Hypotheses of the beam.", min=2)] = 4,
    threads: Curve = None,
    repeat: Repeat = 5,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Time beam search for translations beside plain torch.

    Sentences per second with a beam and greedy, for an untrained model of the size of
    multi30k-attention, whose texts are as long as their sources; the peer searches with the same
    weights and finds the same texts. With MODEL, no peer: text in, text out. On cuda after some
    searches, which are replayed from CUDA graphs from then on.
    """
    if (model is None) != (lines is None):
        raise UsageError("MODEL and --lines belong together", "give both, or neither")
    if model is not None and number is not None:
        raise UsageError("--sentences is for the untrained model", "leave it out")
    check_cuda(device)
    from elman.bench import beams as bench
    from elman.bench.recurrent import over_threads

    if model is None or lines is None:
        count = parse_count(number or ("1000" if device == "cuda" else "64"))
        found = partial(bench.measure, count, beam, repeat, device)
    else:
        texts = list(read_lines(lines))
        found = partial(bench.measure_run, model, texts, beam, repeat, device)
    show(over_threads(parse_threads(threads), found), json=json)


def generate(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Curve = None,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Time generation beside a loop over torch's layers.

    Tokens per second of one stream, in float32 and with int8 weights.
    """
    from elman.bench.generate import measure
    from elman.bench.recurrent import over_threads

    chosen, numbers = parse_cells(cells), parse_threads(threads)
    found = partial(measure, chosen, parse_sizes(sizes, usual.STREAMS), repeat)
    show(over_threads(numbers, found), json=json)


def equal_time(
    file: Annotated[str, argument("FILE", "Text to train on.")],
    minutes: Annotated[float, option("M", "Minutes for each cell.")] = 2.0,
    steps: Annotated[
        int | None, option("N", "Train for N updates instead of minutes.", min=1)
    ] = None,
    cells: Annotated[
        str | None, option("NAME,...", "Cells, such as lstm,qrnn. [default: all]")
    ] = None,
    layer_weights: Annotated[
        int,
        option(
            "N",
            "Give each cell the width with which its layers have about N weights; 0: one width.",
            min=0,
        ),
    ] = 0,
    by_speed: BySpeed = False,
    within: Within = None,
    settings: Settings = None,
    out: Kept = None,
    threads: TrainingThreads = None,
    json: Json = False,
) -> None:
    """Compare cells trained for the same time.

    Training speed and validation perplexity; the first cell is the peer of the others. Settings are
    the automatic ones for the text with two layers, which cells that train in parallel over time
    need. DIR gets cells.jsonl, a line for each cell with its validation curve.
    """
    from elman.bench.cells import CellPlan, compare_cells

    if by_speed and steps:
        raise UsageError("--by-speed is for minutes", "leave out --steps")
    chosen = list(TRAINED_CELLS)
    if cells is not None:
        chosen = parse_names(cells, TRAINED_CELLS, "cell")
    plan = CellPlan(file, tuple(settings or ()), minutes, steps, layer_weights, by_speed)
    with work_folder(out) as folder:
        show(compare_cells(plan, chosen, folder, within=within), json=json)


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
    layouts: Annotated[
        bool,
        option(
            None, "Measure only the layouts of a model: size, speed and perplexity.", "--layouts"
        ),
    ] = False,
    test: Annotated[
        Path | None, option("FILE", "With --layouts: the text to score. [default: the end of FILE]")
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
        if layouts:
            peer = bench.KenLM.find(kenlm)
            rows = bench.layouts(files or (), at, counts[0], order, repeat, peer, test)
        elif curve:
            rows = bench.curve(files or (), at, counts, order, repeat)
        elif threads:
            numbers = [parse_count(number) for number in threads.split(",")]
            rows = bench.scaling(files or (), at, counts[0], order, repeat, numbers)
        else:
            peer = bench.KenLM.find(kenlm)
            rows = bench.compare(files or (), at, counts[0], order, repeat, peer, lmplz_memory)
        show(rows, json=json)


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
