"""Measure whole updates of `elman train classifier` on a CPU, beside the same model in plain torch.

Unlike the steps in `sentences.py`, these are what a run does: its batches of equal lengths, made
anew each time, and its dropout. The peer reads the same batches and draws the same dropout, with
nn.LSTM, a dense gradient of the embedding, and torch's clipping and Adam; freed memory is kept for
both, as in a run.

Another program that takes a core for a moment delays an update by many times its own length, so
each batch counts with the least of its times in all rounds. Medians of whole rounds and the
processor time of all threads have rows of their own. With one thread the latter hardly depends on
other programs; of several threads, those that wait for another one are busy, too.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.base.processor import processor_name
from elman.bench.recurrent import run_and_name
from elman.bench.rows import Row, more_is_better
from elman.bench.sentences import Packed, drawn
from elman.nn.torch_weights import to_torch
from elman.recipes.resolve import resolve
from elman.tasks.classification.task import Classification, set_up
from elman.train.ranks import ALONE
from elman.train.trainable import Batches
from elman.train.updating import Updater

NUM_UPDATES = 150
"""Updates of a round."""
TEXTS, VOCABULARY, LENGTHS = 4000, 10_000, (4, 40)
"""Made texts: how many, of how many words, how long."""
RATE = 0.1
"""Share of the learning rate's highest value."""


@dataclass
class Side:
    """One of the two programs."""

    update: Callable[[Any], Tensor]
    """Update the weights from a batch; return the loss."""
    batches: Batches
    seconds: list[float] = field(default_factory=list)
    """Of each batch, the least of all rounds."""
    cpu_seconds: list[float] = field(default_factory=list)
    """The same of the processor time of all threads."""
    rounds: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Update the weights on the first batches of the data."""
        start = self.batches.state_dict()
        seconds, cpu_seconds = [], []
        for _ in range(NUM_UPDATES):
            before, cpu_before = time.perf_counter(), time.process_time()
            self.update(next(self.batches))
            seconds.append(time.perf_counter() - before)
            cpu_seconds.append(time.process_time() - cpu_before)
        self.batches.load_state_dict(start)
        self.rounds.append(sum(seconds))
        self.seconds = list(map(min, seconds, self.seconds or seconds))
        self.cpu_seconds = list(map(min, cpu_seconds, self.cpu_seconds or cpu_seconds))

    def costs(self) -> dict[str, float]:
        """Seconds for all updates, by how they are counted."""
        return {
            "least times": sum(self.seconds),
            "median": statistics.median(self.rounds),
            "processor time": sum(self.cpu_seconds),
        }


def measure(table: Path | None, repeat: int) -> Iterator[Row]:
    """A row for each way to count; `table` has labelled texts, None: made ones."""
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder:
        file = _made(Path(folder) / "made texts.tsv") if table is None else table
        config = resolve("classifier", [str(file)], device="cpu").config
        data = set_up(config, Path(folder), False)
    yield from _measure(data, file.name, repeat)


def sides(data: Classification) -> tuple[Side, Side, Updater]:
    """Ours and the peer, with the same weights, and what updates ours."""
    torch.manual_seed(1)
    model, config = data.build().train(), data.config
    peer = copy.deepcopy(model)
    peer.stack = Packed(to_torch(model.stack))  # type: ignore[assignment]
    trainable, plain = data.trainable(model), data.trainable(peer)
    parameters = list(model.parameters())
    updater = Updater(trainable, parameters, config.optimiser, config.training, ALONE)
    optimiser = torch.optim.Adam(peer.parameters(), lr=RATE * config.optimiser.learning_rate)

    def ours(batch: Any) -> Tensor:
        updater.set_learning_rate(RATE, batch)
        figures, _ = updater.update(batch, None)
        loss: Tensor = figures[0] / batch.num_targets
        return loss

    def theirs(batch: Any) -> Tensor:
        optimiser.zero_grad()
        loss = plain.objective(batch, None).loss
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(peer.parameters(), config.training.clip_norm)
        optimiser.step()
        return loss.detach()

    return Side(ours, trainable.batches), Side(theirs, plain.batches), updater


def _measure(data: Classification, name: str, repeat: int) -> Iterator[Row]:
    ours, peer, updater = sides(data)
    start = ours.batches.state_dict()
    some = [next(ours.batches) for _ in range(NUM_UPDATES)]
    ours.batches.load_state_dict(start)
    losses = []
    with updater.running():
        for side in (ours, peer):
            torch.manual_seed(1)
            loss, kernel = run_and_name(partial(side.update, some[0]), updater.trainable.model)
            losses.append((float(loss), kernel))
        for number in range(repeat + 1):
            for side in (ours, peer):
                side.run()
                if number == 0:  # libraries initialise
                    side.rounds, side.seconds, side.cpu_seconds = [], [], []
    num_tokens = sum(batch.num_tokens for batch in some)
    peers = peer.costs()
    for way, seconds in ours.costs().items():
        yield more_is_better(
            f"classifier update on {name}, {way}",
            num_tokens / seconds,
            num_tokens / peers[way],
            "tokens/s",
            device="cpu",
            dtype="float32",
            kernel=losses[0][1],
            loss=losses[0][0],
            peer_loss=losses[1][0],
            tokens=num_tokens,
            updates=NUM_UPDATES,
            updates_per_second=NUM_UPDATES / seconds,
            peer_updates_per_second=NUM_UPDATES / peers[way],
            threads=torch.get_num_threads(),
            processor=processor_name(),
        )


def _made(file: Path) -> Path:
    """Texts of random words and labels."""
    random = np.random.default_rng(2)
    lengths = random.integers(*LENGTHS, size=TEXTS).tolist()
    lines = ["text\tlabel"]
    for length in lengths:
        words = " ".join(f"w{word}" for word in drawn(random, VOCABULARY, length))
        lines.append(f"{words}\t{random.integers(2)}")
    file.write_text("\n".join(lines) + "\n")
    return file
