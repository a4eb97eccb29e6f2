"""Several processes that train one model together, each on its rows of every batch.

torchrun starts them (`base/launch.py`). Process 0, the leader, chooses the settings, writes the run
folder, validates and decides when to stop; the others follow its orders. All of them read the same
batches in the same order, and each computes the gradients of its rows (`rows`). The losses are
divided by the number of targets of the whole batch, so that the sum of the gradients over the
processes is the gradient of the batch, however the rows are divided.

Gradients are summed in one piece after the backward pass (`sum_gradients`). torch's
DistributedDataParallel wraps the `forward` of a module; objectives here call other methods, split
batches (`training.accumulate`), leave parameters without a gradient (clusters of an adaptive
softmax, frozen layers) and are replayed as CUDA graphs. What it would gain, sending gradients
during the backward pass, is little for recurrent networks: the embedding, most of the weights of a
model over words, has its gradient last.

Messages go through gloo, gradients on GPUs through nccl. A process that waits for another waits as
long as it takes: reading a text or a validation may take minutes. A thread of each process watches
that the others are alive and take part in updates, and ends the process if they are not.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain
from elman.base.launch import Launch, host, launch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

    from elman.train.interrupt import Interrupt

T = TypeVar("T")
JOINING_SECONDS = 45
"""Time for all processes to start."""
BEAT_SECONDS = 2.0
BEATS = 20
"""A process is gone if it was silent for this many beats of another; after suspending a machine,
all of them go on."""
FOREVER = timedelta(days=14)
REACH = (
    "start the same torchrun command on every machine, and check that they reach one another: "
    "--master-addr, firewalls, GLOO_SOCKET_IFNAME"
)


class Order(IntEnum):
    """What the leader tells the others to do."""

    END = 0
    UPDATE = 1
    """Compute an update."""
    COLLECT = 2
    """Send what the train state holds of each process, and receive the weights."""
    RESTART = 3
    """Receive the weights, and forget the optimiser's memory."""


@dataclass(eq=False)
class Ranks:
    """The processes that train together; this one is number `rank` of `size`."""

    rank: int = 0
    size: int = 1
    num_updates: int = 0
    """Updates that this process has begun to average."""
    interrupt: Interrupt | None = None
    """While training; a process that receives a signal to stop tells the leader."""
    _watch: _Watch | None = field(default=None, repr=False)

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def rows(self, num_rows: int) -> slice:
        """The rows of a batch that this process computes; none if there are too few."""
        return slice(num_rows * self.rank // self.size, num_rows * (self.rank + 1) // self.size)

    def from_leader(self, make: Callable[[], T]) -> T:
        """Return what `make` returns in the leader.

        If it raises an error there, the leader ends with it, and the others without a word.
        """
        if self.size == 1:
            return make()
        from torch import distributed

        value = [make() if self.is_leader else None]
        with self._connected():
            distributed.broadcast_object_list(value, src=0)
        return value[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes in the leader, an empty list in the others."""
        if self.size == 1:
            return [value]
        from torch import distributed

        found: list[Any] = [None] * self.size if self.is_leader else []
        with self._connected():
            distributed.gather_object(value, found if self.is_leader else None, dst=0)
        return found

    def order(self, kind: Order, *numbers: float) -> None:
        """Tell the others what to do next; the leader does it too."""
        if self.size > 1:
            self._orders(kind, *numbers)

    def next_order(self) -> tuple[Order, float, float]:
        """Wait for the leader."""
        kind, first, second = self._orders(0)
        return Order(int(kind)), first, second

    def _orders(self, *numbers: float) -> list[float]:
        import torch

        message = torch.zeros(3, dtype=torch.float64)
        message[: len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        with self._connected():
            torch.distributed.broadcast(message, src=0)
        return message.tolist()

    def sum_gradients(self, parameters: Sequence[Parameter], nats: Tensor) -> Tensor:
        """Sum the gradients over the processes; return the sum of their `nats`.

        A gradient that no process has stays None, as it would in one process. Each sends for every
        parameter whether it has a gradient; only one that lacks a gradient reads that.
        """
        import torch

        self.num_updates += 1
        learning = [p for p in parameters if p.requires_grad]
        missing = [i for i, p in enumerate(learning) if p.grad is None]
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in learning]
        has = nats.new_ones(len(learning))
        for i in missing:
            has[i] = 0
        flat = torch.cat([*(piece.flatten() for piece in pieces), has, nats.reshape(1)])
        with self._connected():
            torch.distributed.all_reduce(flat)
        sizes = [*(p.numel() for p in learning), len(learning), 1]
        *sums, has, nats = torch.split(flat, sizes)
        nowhere = {i for i in missing if not has[i]}
        for i, (parameter, total) in enumerate(zip(learning, sums, strict=True)):
            parameter.grad = None if i in nowhere else total.view_as(parameter)
        return nats.squeeze(0)

    def send_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of the leader."""
        from torch import distributed

        for tensor in tensors if self.size > 1 else ():
            with self._connected():
                distributed.broadcast(tensor, src=0)

    def prepare(self, work: Callable[[], tuple[T, Mapping[str, str]]]) -> T:
        """Call `work` in every process; the mappings that it returns beside its result must be
        equal. An error in any process is raised in the leader, and ends the others.
        """
        error, result, about = None, None, dict[str, str]()
        try:
            result, found = work()
            about = dict(found)
        except (ElmanError, OSError) as raised:
            if self.is_leader:
                raise
            told = raised if isinstance(raised, ElmanError) else explain(raised, raised.filename)
            error = (told.message, told.hint)
        for number, (where, theirs, failed) in enumerate(self.gather((host(), about, error))):
            who = f"process {number} on {where}"
            if failed is not None:
                raise ElmanError(f"{who}: {failed[0]}", failed[1])
            for name, value in theirs.items():
                if value != about[name]:
                    raise ElmanError(
                        f"{who} has another {name} than process 0: {value}, not {about[name]}",
                        "give every machine the same files, versions and kind of device",
                    )
        if error is not None:
            raise SystemExit(1)
        assert result is not None
        return result

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Explain the error of a lost connection, in the leader alone."""
        try:
            yield
        except RuntimeError as error:
            import torch

            # In a capture nothing is sent: what cannot be captured is computed without a graph.
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise
            if not self.is_leader:
                raise SystemExit(1) from error
            raise ElmanError(
                f"another of the {self.size} processes has ended",
                "its own message tells why; go on from the last checkpoint with --resume, which "
                "torchrun's --max-restarts does by itself",
            ) from error


ALONE = Ranks()
"""One process, without torchrun."""


@dataclass(frozen=True)
class Own:
    """What a train state holds of one process."""

    carried: Mapping[str, Tensor]
    """The recurrent state of its rows."""
    random: Mapping[str, Tensor]
    """The states of its random generators."""


def random_group(rank: int) -> str:
    """The name of a process's random generators in the train state."""
    return "random" if rank == 0 else f"random-{rank}"


def seed_of(seed: int, rank: int, step: int = 0) -> int:
    """The seed of a process that begins at `step`; that of the leader is the run's own."""
    import numpy as np

    if rank == 0:
        return seed
    return int(np.random.SeedSequence((seed, rank, step)).generate_state(1, np.uint64)[0] >> 1)


def device_of(here: Launch, asked: str) -> str:
    """The device of a process: on GPUs, each has its own."""
    import torch

    num_gpus = torch.cuda.device_count() if asked != "cpu" else 0
    if asked == "cpu" or (asked == "auto" and not num_gpus):
        return "cpu"
    if asked not in ("auto", "cuda"):
        raise UsageError(
            f"the {here.size} processes cannot share {asked}",
            "write --device cuda, which gives each process its own GPU, or --device cpu",
        )
    if num_gpus < here.local_size:
        raise UsageError(
            f"{here.local_size} processes on {host()}, which has {counted(num_gpus, 'GPU')}",
            f"start torchrun with --nproc-per-node {num_gpus or 1}, or use --device cpu",
        )
    return f"cuda:{here.local_rank}"


@contextmanager
def joined(device: str) -> Iterator[tuple[Ranks, str]]:
    """Join the processes that torchrun started, if it did; yield them and this one's device.

    The leader alone writes to the terminal. The others write errors that they alone have.
    """
    here = launch()
    if here.size == 1:
        yield ALONE, device
        return
    if not 0 <= here.rank < here.size:
        raise UsageError(
            f"RANK is {here.rank}, WORLD_SIZE {here.size}", "start the processes with torchrun"
        )
    with ExitStack() as stack:
        if here.rank:
            # torch, which is imported later, reads this: process 0 says that a connection is lost.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
            null = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(null))
            stack.enter_context(redirect_stderr(null))
        try:
            device = device_of(here, device)
        except UsageError as error:
            if here.local_rank:
                raise SystemExit(error.exit_code) from error
            raise
        ranks = _join(here, device)
        assert ranks._watch is not None
        stack.callback(_leave, ranks._watch)
        try:
            yield ranks, device
        except ElmanError as error:
            if here.rank:
                error.message = f"process {here.rank} on {host()}: {error.message}"
            raise


def _join(here: Launch, device: str) -> Ranks:
    import torch

    distributed: Any = torch.distributed
    if here.local_size == here.size:  # the name of this machine may have no address
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    backend = "gloo"
    if device.startswith("cuda"):
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    store: Any = None
    try:
        timeout = timedelta(seconds=JOINING_SECONDS)
        store, _, _ = next(distributed.rendezvous("env://", timeout=timeout))
        own = distributed.PrefixStore(f"elman/{_meet(store, here)}", store)
        own.wait([_key(rank) for rank in range(here.size)], timeout)
        ranks = Ranks(here.rank, here.size)
        ranks._watch = _Watch(ranks, own.clone())
        ranks._watch.start()
        distributed.init_process_group(
            backend, store=own, rank=here.rank, world_size=here.size, timeout=FOREVER
        )
    except (RuntimeError, ValueError) as error:
        if store is not None and here.rank:  # process 0 says it
            raise SystemExit(1) from error
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        problem = f"process {here.rank} cannot connect: {error}"
        if store is None:
            problem = f"process {here.rank} cannot reach {address} within {JOINING_SECONDS} s"
        raise ElmanError(problem, REACH) from error
    return ranks


def _meet(store: Any, here: Launch) -> str:
    """Wait for all processes, and agree on a name for this attempt.

    The store of torchrun outlives the processes that it starts again, so it has keys of earlier
    ones. Each process introduces itself under a new name, and the leader answers with its own.
    """
    name, timeout = uuid4().hex, timedelta(seconds=JOINING_SECONDS)
    if here.rank:
        store.set(f"elman/hello/{here.rank}", name)
        try:
            store.wait([f"elman/welcome/{name}"], timeout)
        except RuntimeError as error:
            if here.rank > 1:
                raise
            problem = f"process 0 of {here.size} did not join within {JOINING_SECONDS} s"
            raise ElmanError(problem, REACH) from error
        name = str(store.get(f"elman/welcome/{name}"), "utf-8")
        store.set(f"elman/{name}/{_key(here.rank)}", "0 0 0")
        return name
    store.set(f"elman/{name}/{_key(0)}", "0 0 0")
    late, welcomed, began = list(range(1, here.size)), set[str](), time.monotonic()
    while late := [rank for rank in late if not store.check([f"elman/{name}/{_key(rank)}"])]:
        if time.monotonic() - began > JOINING_SECONDS:
            missing = f"process{'' if len(late) == 1 else 'es'} {', '.join(map(str, late))}"
            problem = f"{missing} of {here.size} did not join within {JOINING_SECONDS} s"
            raise ElmanError(problem, REACH)
        for rank in late:
            hello = f"elman/hello/{rank}"
            other = store.get(hello).decode() if store.check([hello]) else None
            if other is not None and other not in welcomed:
                store.set(f"elman/welcome/{other}", name)
                welcomed.add(other)
        time.sleep(0.02)
    return name


def _leave(watch: _Watch) -> None:
    from torch import distributed

    watch.ended.set()
    # After an error, others may be gone: do not wait for them.
    if sys.exc_info()[0] is None:
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def _key(rank: int) -> str:
    return f"beat/{rank}"


class _Watch(threading.Thread):
    """Tell the other processes every few seconds that this one is alive, and how far it is; end it
    if another one is not. The leader watches all, the others the leader.

    The main thread may be inside a library that waits for a message, and then nothing else can end
    it.
    """

    def __init__(self, ranks: Ranks, store: Any) -> None:
        super().__init__(name="watch", daemon=True)
        self.ranks, self.store = ranks, store
        self.ended = threading.Event()
        others = range(1, ranks.size) if ranks.is_leader else range(1)
        self.silent = dict.fromkeys(others, 0)
        """Beats of this process since each other's last one."""
        self.behind = dict.fromkeys(others, 0)
        """Beats since each other should have begun an update."""
        self.last = dict.fromkeys(others, "")

    def run(self) -> None:
        number = lost = 0
        while not self.ended.wait(BEAT_SECONDS):
            number += 1
            try:
                self._beat(number)
                lost = 0
            except RuntimeError:
                lost += 1
                if lost > BEATS // 2:
                    self._end("the connection to the machine of process 0 is lost")

    def _beat(self, number: int) -> None:
        ranks, interrupt = self.ranks, self.ranks.interrupt
        stops = int(interrupt is not None and interrupt.requested is not None)
        self.store.set(_key(ranks.rank), f"{number} {ranks.num_updates} {stops}")
        found = self.store.multi_get([_key(rank) for rank in self.last])
        for rank, beat in zip(self.last, (bytes(value).decode() for value in found), strict=True):
            _, updates, stops = map(int, beat.split())
            if stops and interrupt is not None and interrupt.requested is None and not ranks.rank:
                interrupt.requested = SIGTERM
            before = self.last[rank].split()[1:2]
            self.silent[rank] = 0 if beat != self.last[rank] else self.silent[rank] + 1
            self.last[rank] = beat
            # The first update may compile for as long as it takes.
            waits = ranks.num_updates > 1 and updates < ranks.num_updates
            moved = before != [str(updates)]
            self.behind[rank] = self.behind[rank] + 1 if waits and not moved else 0
            seconds = round(BEATS * BEAT_SECONDS)
            if self.silent[rank] >= BEATS:
                self._end(f"process {rank} has been silent for {seconds} s: stopped, or cut off")
            if self.behind[rank] >= BEATS:
                told = f"process {rank} is alive, but has not begun update"
                self._end(f"{told} {updates + 1:,} of this session within {seconds} s")

    def _end(self, problem: str) -> None:
        if self.ended.is_set():
            return
        if self.ranks.rank < 2 and sys.__stderr__ is not None:
            cursor = "\x1b[?25h\n" if sys.__stderr__.isatty() else ""
            hint = "look at its machine, then go on from the last checkpoint with --resume"
            sys.__stderr__.write(f"{cursor}error: {problem}\nhint: {hint}\n")
            sys.__stderr__.flush()
        os._exit(1)
