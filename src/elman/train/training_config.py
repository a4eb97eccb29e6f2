"""How a run is trained: batches, length, clipping, precision, and how often it looks up from its
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elman.base.config import at_least
from elman.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the loop. Of `epochs`, `steps` and `minutes` exactly one is set."""

    batch_size: int = 32
    """Lanes of text, or sentences, that are read side by side."""
    chunk_length: int = 64
    """Tokens of each lane per step: where backpropagation through time is truncated."""
    vary_chunks: bool = False
    """Draw each chunk's length around `chunk_length`, as AWD-LSTM does; the learning rate follows
    it.
    """
    epochs: int | None = None
    """Length of the run in passes over the text."""
    steps: int | None = None
    """Length of the run in updates."""
    minutes: float | None = None
    """Length of the run in minutes, from reading the text to the last evaluation."""
    clip_norm: float = 1.0
    """Scale the gradient down to this norm where it is longer; 0 leaves it alone."""
    accumulate: int = 1
    """Parts into which each batch is divided, one after another, to save memory: the gradient is
    the same.
    """
    precision: Literal["float32", "bf16"] = "float32"
    """Arithmetic of the forward and backward pass; weights and updates are float32 in both."""
    cuda_graph: bool = True
    """On CUDA, capture a step once and replay it: the same results without the launches' cost."""
    validate_every: int = 0
    """Updates between validations; 0: each epoch (at least every 5,000 updates), or as a run by
    minutes allows.
    """
    patience: int = 0
    """Validations without improvement after which the run stops early; 0: never."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints: the most work that a crash can cost."""
    report_every: int = 20
    """Updates between reports."""
    sample_length: int = 100
    """Tokens of generated text after each validation; 0: none."""
    seed: int = 1
    """Where every random number begins."""
    tensorboard: bool = False
    """Write a TensorBoard log into the run folder as well."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "chunk_length", "accumulate", "report_every"):
            at_least(f"training.{name}", getattr(self, name), 1)
        for name in (
            "clip_norm",
            "validate_every",
            "patience",
            "checkpoint_seconds",
            "sample_length",
            "seed",
        ):
            at_least(f"training.{name}", getattr(self, name), 0)
        for name in ("epochs", "steps", "minutes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(
                    f"training.{name} cannot be {value}",
                    "use more than 0" if name == "minutes" else "use 1 or more",
                )
        lengths = [n for n in ("epochs", "steps", "minutes") if getattr(self, n) is not None]
        if len(lengths) > 1:
            raise UsageError(
                f"the run's length is given twice: {' and '.join(lengths)}", "give one of them"
            )
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"a batch of {self.batch_size} has no {self.accumulate} equal parts",
                "choose a training.accumulate that divides training.batch_size",
            )
