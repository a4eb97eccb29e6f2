"""The device to compute on, and its speed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.threads import usable_cores

CPU_PRODUCTS, GPU_PRODUCTS = 3e10, 3e14
"""Multiplications per second of the references."""
ROUNDS = 5


@dataclass(frozen=True)
class Machine:
    device: str
    """The name that torch uses: cpu or cuda."""
    description: str
    """"2 cores", or the name of the GPU."""

    speed: float = 1.0
    """Of products, as a multiple of a reference: two cores of a server, or an H200."""

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def timed(self) -> Machine:
        """The same with its measured speed, which takes about a tenth of a second."""
        if self.is_gpu:
            rate = _products_per_second(self.device, torch.bfloat16, 4096, 4096, 20)
            return replace(self, speed=rate / GPU_PRODUCTS)
        # The size of a step: more cores do not help it much, as in training.
        rate = _products_per_second(self.device, torch.float32, 16, 512, 200)
        return replace(self, speed=rate / CPU_PRODUCTS)


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


def _products_per_second(
    device: str, dtype: torch.dtype, num_rows: int, width: int, repeat: int
) -> float:
    """The rate of products of (rows, width) and (width, width) matrices; the median of rounds."""
    inputs = torch.ones(num_rows, width, device=device, dtype=dtype)
    weights = torch.ones(width, width, device=device, dtype=dtype)
    found = []
    for _ in range(ROUNDS + 1):
        before = time.perf_counter()
        for _ in range(repeat):
            torch.mm(inputs, weights)
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - before)
    seconds = sorted(found[1:])[ROUNDS // 2]  # the first is a warm-up
    return repeat * num_rows * width * width / seconds
