"""Write the best model and the train state, in a small share of the training time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from elman.train import checkpoint
from elman.train.files import MODEL_FILE

SHARE, QUICK = 0.01, 0.1
"""The largest share of the time for saving the best model after each validation, and the seconds
that it may take anyway; if it would take more, it is kept in memory until the next checkpoint."""

Contents = tuple[dict[str, Tensor], dict[str, Any]]
"""The tensors and the header of a file."""


@dataclass
class Saving:
    """Writes into a run folder, and measures how long that takes."""

    folder: Path
    clock: Callable[[], float]
    longest: float = 0.0
    """Seconds of the longest write."""
    taken: float = 0.0
    """Seconds of all."""
    unsaved: Contents | None = field(default=None, init=False)
    """The best model, if it is better than the saved one."""

    def model(self, tensors: Mapping[str, Tensor], header: dict[str, Any]) -> None:
        """Write model.safetensors."""
        self.unsaved = None
        self.write(MODEL_FILE, tensors, header)

    def best_model(
        self, tensors: Mapping[str, Tensor], header: dict[str, Any], passed: float
    ) -> None:
        """Write model.safetensors now or, if that takes too much of the `passed` seconds since the
        last one, with the next checkpoint.
        """
        if self.longest <= max(QUICK, SHARE * passed):
            self.model(tensors, header)
            return
        kept = {} if self.unsaved is None else self.unsaved[0]
        for name, tensor in tensors.items():
            if name in kept:
                kept[name].copy_(tensor)
            else:
                kept[name] = tensor.detach().clone()
        self.unsaved = kept, header

    def rest(self) -> None:
        """Write model.safetensors if it has not been written since the last best validation."""
        if self.unsaved is not None:
            self.model(*self.unsaved)

    def write(self, file: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        before = self.clock()
        checkpoint.write(self.folder / file, tensors, header)
        seconds = self.clock() - before
        self.taken += seconds
        self.longest = max(self.longest, seconds)
