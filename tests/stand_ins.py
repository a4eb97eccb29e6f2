"""Stand-ins for a CUDA graph, and for a device on which nothing may wait, where there is no GPU.

`Repeat` calls work again on the memory of the first call, which is all that a graph does.

`no_waiting` runs work on the device `meta`. Its tensors have shapes but no numbers, so every
operation that needs a number on the host fails, as in a capture: `item`, a branch on a tensor,
`nonzero`, a mask as an index, a copy to the CPU. The modes here refuse what `meta` would allow:
operations with tensors of the host beside those of the device, and tensors made of Python's
numbers. Code that asks for the kind of device gets the answers of a GPU without Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from elman.nn.graphed import Result


@dataclass
class Repeat:
    """Calls work again instead of capturing it; with an error, no capture succeeds."""

    num_recorded: int = 0
    error: str = ""

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def run(self, work: Callable[[], Result]) -> Result:
        return work()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.error:
            raise RuntimeError(self.error)
        self.num_recorded += 1
        return work


DEVICE = torch.device("meta")
_FROM_NUMBERS = (torch.tensor, torch.as_tensor, torch.from_numpy)
_INDEXING = (Tensor.__getitem__, Tensor.__setitem__)


class WaitError(AssertionError):
    """A copy between host and device, for which a capture would have to wait."""


class _OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of the host and of the device. A number on the host, as a
    tensor without axes, is an argument of the launch."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        found = func(*args, **kwargs)
        tensors += [one for one in tree_leaves(found) if isinstance(one, Tensor)]
        if len({one.device.type for one in tensors if one.dim() or one.is_meta}) > 1:
            raise WaitError(f"{func} copies between the host and the device")
        return found


class _NoNumbers(TorchFunctionMode):
    """Refuses tensors on the device that are made of numbers on the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _FROM_NUMBERS:
            copies = found.device == DEVICE and not isinstance(args[0], Tensor)
        else:
            index = args[1] if func in _INDEXING and args[0].device == DEVICE else ()
            parts = index if isinstance(index, tuple) else (index,)
            copies = any(isinstance(part, (list, np.ndarray)) for part in parts)
        if copies:
            raise WaitError(f"{func.__name__} copies numbers from the host")
        return found


@contextmanager
def no_waiting() -> Iterator[None]:
    """Run what a capture would run, on tensors that are on `DEVICE`."""
    is_on, autocast = torch.is_autocast_enabled, torch.autocast

    def no_autocast(device: str, *args: Any, **kwargs: Any) -> Any:
        return nullcontext() if device == DEVICE.type else autocast(device, *args, **kwargs)

    with ExitStack() as stack:
        for change in (
            patch.object(Tensor, "is_cuda", property(lambda self: self.is_meta)),
            patch.object(torch, "is_autocast_enabled", lambda kind: kind != "meta" and is_on(kind)),
            patch.object(torch, "autocast", no_autocast),
            _OneDevice(),
            _NoNumbers(),
        ):
            stack.enter_context(change)
        yield
