"""Training in several processes beside one with as many threads, and what more would reach.

Whole programs train the same model on the same batches for some updates, in turns: one process with
N threads, N processes of one thread as torchrun starts them, and one process of one thread on an
Nth of the batch, the work of each. `python -m elman.bench.ranks BYTES`, started by torchrun, times
the sum of gradients of this size.

What more processes would reach is computed (`efficiency`): each process sends and receives
2 (n - 1) / n times the bytes of the gradients (a ring), after the backward pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from elman.base.documents import read_json_lines
from elman.base.errors import ElmanError
from elman.bench.measuring import last_line
from elman.bench.rows import Row, more_is_better, note
from elman.bench.sizes import Size
from elman.train.files import METRICS_FILE, MODEL_FILE

TEXT = "python-docs"
GROUPS = (8, 64)
"""Numbers of processes whose efficiency is computed."""
ROUNDS = 10
REPORT_EVERY = 10
BYTES_PER_WEIGHT = 4
"""Gradients are float32."""


def measure(size: Size, processes: int, steps: int, repeat: int, folder: Path) -> Iterator[Row]:
    """Rows of one size."""
    share = max(1, size.batch_size // processes)
    runs = {
        "processes": (size.batch_size, processes, 1),
        "threads": (size.batch_size, 1, processes),
        "share": (share, 1, 1),
    }
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(repeat):
        for name, (batch_size, num_processes, threads) in runs.items():
            out = folder / f"{name}-{number}"
            command = ["train", "lm", TEXT, "--out", str(out), "--threads", str(threads)]
            command += ["--device", "cpu", "--steps", str(steps)]
            _run(["elman", *command, *_settings(size, batch_size)], num_processes)
            speed = _speed(out)
            found[name].append(speed)
            note(f"{num_processes} x {threads} threads, batch {batch_size}: {speed:,.0f} tokens/s")
    speeds = {name: median(each) for name, each in found.items()}
    from elman.train import checkpoint

    tensors, _ = checkpoint.read(folder / "share-0" / MODEL_FILE)
    num_bytes = BYTES_PER_WEIGHT * sum(tensor.numel() for tensor in tensors.values())
    sizes = {
        "hidden_size": size.hidden_size,
        "num_layers": size.num_layers,
        "batch_size": size.batch_size,
        "num_steps": size.num_steps,
        "processes": processes,
    }
    names, unit = f"{processes} processes", "tokens/s"
    ours, peer = speeds["processes"], speeds["threads"]
    alone = processes * speeds["share"]
    yield more_is_better(f"{names}, 1 of {processes} threads", ours, peer, unit, **sizes)
    yield more_is_better(f"{names}, {processes} x one alone", ours, alone, unit, **sizes)
    yield Row("gradients of an update", num_bytes / 1e6, None, None, "MB", sizes)
    seconds = float(_run(["elman.bench.ranks", str(num_bytes)], processes))
    rate = traffic(num_bytes, processes) / seconds / 1e9
    yield Row(f"summed by {names}", seconds * 1e3, None, None, "ms", sizes)
    yield Row(f"sent by each of {names}", rate, None, None, "GB/s", sizes)
    yield from computed(num_bytes, share * size.num_steps / speeds["share"], rate)


def computed(num_bytes: float, update_seconds: float, gigabytes: float) -> Iterator[Row]:
    """Efficiencies for links of `gigabytes` per second, if an update takes `update_seconds` without
    its sum of gradients."""
    for processes in GROUPS:
        reached = 100 * efficiency(num_bytes, update_seconds, gigabytes * 1e9, processes)
        settings = {
            "processes": processes,
            "megabytes": num_bytes / 1e6,
            "update_ms": update_seconds * 1e3,
            "gigabytes": gigabytes,
        }
        name = f"computed: efficiency of {processes} processes at {gigabytes:.3g} GB/s"
        yield Row(name, reached, None, None, "%", settings)


def traffic(num_bytes: float, processes: int) -> float:
    """Bytes that each process sends to sum `num_bytes` in a ring."""
    return 2 * (processes - 1) / processes * num_bytes


def efficiency(num_bytes: float, update_seconds: float, rate: float, processes: int) -> float:
    """The speed of n processes over n times that of one, if each sends `rate` bytes a second."""
    return update_seconds / (update_seconds + traffic(num_bytes, processes) / rate)


def _settings(size: Size, batch_size: int) -> list[str]:
    """Arguments that make the model and the batches of a size, over characters."""
    values = {
        "tokenizer.kind": "char",
        "model.num_layers": size.num_layers,
        "model.hidden_size": size.hidden_size,
        "model.embedding_size": size.embedding_size,
        "model.tied": "false",
        "training.batch_size": batch_size,
        "training.chunk_length": size.num_steps,
        "training.sample_length": 0,
        "training.validate_every": 1_000_000,
        "training.report_every": REPORT_EVERY,
        "data.valid_fraction": 0.005,
    }
    return [part for key, value in values.items() for part in ("--set", f"{key}={value}")]


def _speed(out: Path) -> float:
    """Tokens per second of a run, without its first updates, which load code."""
    rates = [
        float(report["tokens_per_second"])
        for report in read_json_lines(out / METRICS_FILE)
        if "tokens_per_second" in report
    ]
    return median(rates[1:] or rates)


def _run(module: Sequence[str], processes: int) -> str:
    """Run `python -m MODULE...` in some processes; return what it prints."""
    name, *arguments = module
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", name, *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        problem = errors[0].removeprefix("error: ") if errors else last_line(ended.stderr)
        raise ElmanError(f"training failed: {problem}", "run `elman train` by hand")
    return ended.stdout


def _time_sum(num_bytes: int) -> None:
    """Print the seconds that a sum of gradients takes, in process 0."""
    import torch

    from elman.train.ranks import joined

    with joined("cpu") as (ranks, _):
        gradients, seconds = torch.zeros(num_bytes // BYTES_PER_WEIGHT), []
        for _ in range(ROUNDS):
            before = time.perf_counter()
            torch.distributed.all_reduce(gradients)
            seconds.append(time.perf_counter() - before)
        if ranks.is_leader:
            sys.stdout.write(f"{median(seconds)}\n")


if __name__ == "__main__":
    _time_sum(int(sys.argv[1]))
