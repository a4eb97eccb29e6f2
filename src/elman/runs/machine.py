"""The device to compute on, and its speed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch

from elman.base import threads
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.threads import default_threads, usable_cores

CPU_TOKENS = 2.5e4
"""Tokens per second that torch's LSTM of 256 units trains on at a speed of 1."""
GPU_PRODUCTS = 3e14
"""Multiplications per second of a GPU at a speed of 1."""
ROUNDS = 5
CLEARLY = 1.1
"""How much faster fewer threads must be to be chosen: timings on a busy machine vary."""
_before: int | None = None
"""Torch's number of threads before `--threads`."""


@dataclass(frozen=True)
class Machine:
    device: str
    """The name that torch uses: cpu or cuda."""
    description: str
    """"2 cores", or the name of the GPU."""

    speed: float = 1.0
    """As a multiple of a reference: half of what two cores of a server do, or an H200."""

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def timed(self) -> Machine:
        """The same with its measured speed, which takes less than a second."""
        if self.is_gpu:
            rate = _products_per_second(self.device)
            return replace(self, speed=rate / GPU_PRODUCTS)
        return replace(self, speed=_lstm_tokens_per_second() / CPU_TOKENS)


def machine(device: str = "auto") -> Machine:
    """Find the device for `device`: auto, cpu, cuda or cuda:1."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise UsageError("there is no CUDA device here", "use --device cpu, or auto")
        return Machine(device, torch.cuda.get_device_name(device))
    if device != "cpu":
        raise UsageError(f"there is no device called '{device}'", "choose one of: auto, cpu, cuda")
    settle_threads()
    return Machine(device, counted(default_threads(), "core"))


def settle_threads() -> None:
    """Give torch as many threads as `--threads` says, or as many as help.

    Without `--threads`, or `OMP_NUM_THREADS`, one for each core that this process may use. While
    other programs are busy, fewer may be faster: threads wait for the one that has no core. Then
    both numbers and one between are timed. In a program that is not a command, torch's number is
    left as it is.
    """
    global _before
    asked = threads.threads_asked()
    if asked is not None:
        _before = _before or torch.get_num_threads()
        torch.set_num_threads(asked)
        return
    if _before is not None:  # an earlier command in this process was asked for another number
        torch.set_num_threads(_before)
        _before = None
    if "OMP_NUM_THREADS" in os.environ:
        return
    free = threads.free_cores()
    if free is None:
        return
    most = min(torch.get_num_threads(), usable_cores())
    few = max(1, min(most, round(free)))
    torch.set_num_threads(most if few == most else _faster(few, most))


def _faster(few: int, most: int) -> int:
    """The number of threads with which an LSTM trains fastest; the largest unless it is clear."""
    numbers = sorted({few, (few + most) // 2, most})
    rates: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(3):
        for number, found in rates.items():
            torch.set_num_threads(number)
            found.append(_lstm_tokens_per_second(1))
    medians = {number: median(found) for number, found in rates.items()}
    best = max(numbers, key=medians.__getitem__)
    return best if medians[best] > CLEARLY * medians[most] else most


def _lstm_tokens_per_second(rounds: int = ROUNDS) -> float:
    """Tokens per second, forward and backward. Products alone do not tell: a processor that
    multiplies four times as fast trains hardly faster.
    """
    layer, inputs = torch.nn.LSTM(64, 256), torch.ones(64, 16, 64)

    def update() -> None:
        outputs, _ = layer(inputs)
        outputs.sum().backward()

    return inputs.shape[0] * inputs.shape[1] / _seconds(update, rounds)


def _products_per_second(device: str) -> float:
    """The rate of products of square matrices in bfloat16."""
    width, repeat = 4096, 20
    inputs, weights = torch.ones(2, width, width, device=device, dtype=torch.bfloat16)

    def multiply() -> None:
        for _ in range(repeat):
            torch.mm(inputs, weights)
        torch.cuda.synchronize(device)

    return repeat * width**3 / _seconds(multiply)


def _seconds(work: Callable[[], None], rounds: int = ROUNDS) -> float:
    """The median of some rounds, after a warm-up."""
    found = []
    for _ in range(rounds + 1):
        before = time.perf_counter()
        work()
        found.append(time.perf_counter() - before)
    return median(found[1:])
