"""Time training steps and decoding steps of two source trees in turns, in two processes.

    python docs/log/steps_in_turns.py OLD/src NEW/src [WHAT ...]

WHAT is the beginning of a case, such as "train" or "layer gru"; without one all cases are timed.
Less noisy than whole benches: the two trees alternate step by step. Prints a JSON line per model;
`faster` is the median of old / new over the turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

CASES = {
    "train lstm 1 256 32 128 65": 25,
    "train lstm 2 512 64 128 65": 22,
    "train lstm 2 200 20 35 10000": 25,
    "train gru 1 256 32 128 65": 25,
    "train gru 2 512 64 128 65": 30,
    "train lstm 1 512 32 128 65": 12,
    "step lstm 1 512 1 200 65": 25,
    "step lstm 2 650 1 40 10000": 15,
    "step lstm 1 512 64 60 65": 15,
    "step gru 1 512 1 200 65": 20,
    "step lstm 1 256 1 200 65": 25,
    "step gru 2 650 1 40 10000": 25,
    "step mingru 2 200 1 100 10000": 25,
    "layer lstm 1 256 32 16 0": 60,
    "layer lstm 1 512 32 128 0": 60,
    "layer gru 1 256 8 128 0": 200,
    "layer gru 1 256 32 16 0": 200,
    "layer gru 1 256 32 128 0": 120,
    "layer gru 1 256 64 128 0": 120,
    "layer mingru 1 256 32 128 0": 40,
    "layer mingru 1 256 32 512 0": 20,
}
"""What, cell, layers, units, batch, steps, vocabulary; and the number of turns. A layer has no
vocabulary: it runs forward and backward on random inputs."""


def work_of(case: str) -> Callable[[], None]:
    import torch

    from elman.models.recurrent import RecurrentLMConfig

    torch.set_num_threads(2)
    torch.manual_seed(0)
    what, cell, *numbers = case.split()
    layers, units, batch, steps, vocab = map(int, numbers)
    if what == "layer":
        return layer_work(cell, layers, units, batch, steps)
    size = min(units, 256) if what == "train" else units
    config = RecurrentLMConfig(cell=cell, num_layers=layers, hidden_size=units, embedding_size=size)
    model = config.build(vocab, counts_V=torch.ones(vocab))
    tokens = torch.randint(vocab, (batch, steps + 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def train() -> None:
        optimiser.zero_grad(set_to_none=True)
        hidden, _ = model.hidden(tokens[:, :-1], model.initial_state(batch))
        losses = model.head.losses(hidden.dropped_BTH, tokens[:, 1:], hidden.contexts_BTO)
        losses.mean().backward()
        optimiser.step()

    model.train(what == "train")
    decoding = model.for_decoding() if hasattr(model, "for_decoding") else model

    @torch.no_grad()
    def step() -> None:
        state = decoding.initial_state(batch)
        for time_B in tokens[:, :-1].t():
            _, state = decoding.step(time_B, state)

    return train if what == "train" else step


def layer_work(cell: str, layers: int, units: int, batch: int, steps: int) -> Callable[[], None]:
    import torch

    from elman.nn.stack import Stack, StackConfig

    stack = Stack(StackConfig(cell=cell, num_layers=layers, hidden_size=units), units)
    inputs = torch.randn(steps, batch, units).transpose(0, 1).clone().requires_grad_()

    def work() -> None:
        for leaf in (inputs, *stack.parameters()):
            leaf.grad = None
        stack(inputs)[0].square().sum().backward()

    return work


def serve() -> None:
    """Answer a case with "ready", and an empty line with the seconds of one more turn."""
    work: Callable[[], None] | None = None
    for line in sys.stdin:
        if line.strip():
            work = work_of(line.strip())
            work()
            work()
            print("ready", flush=True)
        elif work is not None:
            before = time.perf_counter()
            work()
            print(time.perf_counter() - before, flush=True)


def main(old: str, new: str, *wanted: str) -> None:
    """Alternate which tree goes first."""
    workers = [
        subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": tree},
        )
        for tree in (old, new)
    ]

    def ask(index: int, line: str = "") -> str:
        worker = workers[index]
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(line + "\n")
        worker.stdin.flush()
        return worker.stdout.readline().strip()

    for case, turns in CASES.items():
        if wanted and not case.startswith(wanted):
            continue
        for index in (0, 1):
            ask(index, case)
        seconds: list[list[float]] = [[], []]
        for turn in range(turns):
            for index in (0, 1) if turn % 2 else (1, 0):
                seconds[index].append(float(ask(index)))
        ratios = [before / after for before, after in zip(*seconds, strict=True)]
        medians = [round(1000 * statistics.median(each), 1) for each in seconds]
        row = {"case": case, "old_ms": medians[0], "new_ms": medians[1]}
        print(json.dumps(row | {"faster": round(statistics.median(ratios), 3)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else serve()
