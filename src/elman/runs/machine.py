"""The device to compute on, and its speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.threads import usable_cores

CPU_TOKENS = 2.5e4
"""Tokens per second that torch's LSTM of 256 units trains on at a speed of 1."""
GPU_PRODUCTS = 3e14
"""Multiplications per second of a GPU at a speed of 1."""
ROUNDS = 5


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
        """The same with its measured speed, which takes about a tenth of a second."""
        if self.is_gpu:
            rate = _products_per_second(self.device, torch.bfloat16, 4096, 4096, 20)
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
    return Machine(device, counted(usable_cores(), "core"))


def _lstm_tokens_per_second() -> float:
    """Tokens per second, forward and backward. Products alone do not tell: a processor that
    multiplies four times as fast trains hardly faster.
    """
    layer, inputs = torch.nn.LSTM(64, 256), torch.ones(64, 16, 64)

    def update() -> None:
        outputs, _ = layer(inputs)
        outputs.sum().backward()

    return inputs.shape[0] * inputs.shape[1] / _seconds(update)


def _products_per_second(
    device: str, dtype: torch.dtype, num_rows: int, width: int, repeat: int
) -> float:
    """The rate of products of (rows, width) and (width, width) matrices."""
    inputs = torch.ones(num_rows, width, device=device, dtype=dtype)
    weights = torch.ones(width, width, device=device, dtype=dtype)

    def multiply() -> None:
        for _ in range(repeat):
            torch.mm(inputs, weights)
        torch.cuda.synchronize(device)

    return repeat * num_rows * width * width / _seconds(multiply)


def _seconds(work: Callable[[], None]) -> float:
    """The median of some rounds, after a warm-up."""
    found = []
    for _ in range(ROUNDS + 1):
        before = time.perf_counter()
        work()
        found.append(time.perf_counter() - before)
    return sorted(found[1:])[ROUNDS // 2]
