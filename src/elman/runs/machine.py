"""The device to compute on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.base.threads import usable_cores


@dataclass(frozen=True)
class Machine:
    device: str
    """The name that torch uses: cpu or cuda."""
    description: str
    """"2 cores", or the name of the GPU."""

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")


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
