"""Settings of the training loop, in parts, so that a task takes exactly those that it reads.

| class | for |
|---|---|
| `TrainingConfig` | every task that the loop trains |
| `SamplingTrainingConfig` | tasks that generate a sample after each validation |
| `ChunkTrainingConfig` | tasks that cut long sequences of running text into pieces |
| `LaneTrainingConfig` | language models: lanes of running text, and all of the above |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from elman.base.config import at_least, between, refuse_unread
from elman.base.errors import UsageError
from elman.base.launch import launch


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the loop. Exactly one of `epochs`, `steps` and `minutes` is set."""

    batch_size: int = 32
    """Sequences (lanes of text, sentences) per batch."""
    epochs: int | None = None
    """Length of the run in passes over the data."""
    steps: int | None = None
    """Length of the run in updates."""
    minutes: float | None = None
    """Length of the run in minutes, from reading the text to the last evaluation."""
    clip_norm: float = 1.0
    """Scale gradients with a larger norm down to this one; 0: do not clip."""
    accumulate: int = 1
    """Split each batch into this many parts, computed one after another, to save memory; the
    gradient stays the same.
    """
    precision: Literal["float32", "bf16", "auto"] = "float32"
    """Number format of the forward and backward pass; weights and updates are always float32. auto
    is bf16 on a GPU, and float32 on a CPU, but for language models with LSTM layers on a processor
    that multiplies bfloat16 faster: there products are in bf16, sums and cells in float32.
    """
    validate_every: int = 0
    """Updates between validations; 0: after each epoch (at least every 5,000 updates) that ends 20
    updates or more after the last validation, and less often if validating would take more than
    5 % of the time, or 2 % after a hundred validations; a run by minutes validates up to 60 times,
    in at most 5 % of its time.
    """
    patience: int = 0
    """Stop early after this many validations without improvement; 0: never."""
    cuda_graph: bool = True
    """On CUDA, capture an update once for each shape of batch and replay it: same results, without
    the launch overhead. Batches of sentences are padded to few shapes.
    """
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints: the most work that a crash can cost."""
    report_every: int = 20
    """Updates between reports."""
    seed: int = 1
    """Random seed."""
    tensorboard: bool = False
    """Also write a TensorBoard log into the run folder."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "report_every"):
            at_least(f"training.{name}", getattr(self, name), 1)
        for name in ("clip_norm", "validate_every", "patience", "checkpoint_seconds", "seed"):
            at_least(f"training.{name}", getattr(self, name), 0)
        lengths = {name: getattr(self, name) for name in ("epochs", "steps", "minutes")}
        lengths = {name: value for name, value in lengths.items() if value is not None}
        for name, value in lengths.items():
            if value <= 0:
                raise UsageError(
                    f"training.{name} cannot be {value}",
                    "use more than 0" if name == "minutes" else "use 1 or more",
                )
        if len(lengths) > 1:
            raise UsageError(
                f"the run's length is given twice: {' and '.join(lengths)}", "give one of them"
            )
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"a batch of {self.batch_size} cannot be split into {self.accumulate} equal parts",
                "choose a training.accumulate that divides training.batch_size",
            )

    def is_bf16(self, device: str, model: Any = None) -> bool:
        """Whether a forward pass on a kind of device is in bfloat16; on a CPU it depends on the
        model too.
        """
        if self.precision == "auto" and device == "cpu" and model is not None:
            return self._halves_pay(model)
        return self.precision == "bf16" or (self.precision == "auto" and device == "cuda")

    def _halves_pay(self, model: Any) -> bool:
        """Whether `model` trains faster on this CPU with products in bfloat16."""
        return False

    def precision_notes(self, is_gpu: bool) -> list[str]:
        """For people: how the device computes."""
        if not is_gpu or not self.is_bf16("cuda"):
            return []
        graphs = ", updates replayed from CUDA graphs" if self.cuda_graph else ""
        return [f"computed in bfloat16, weights in float32{graphs}"]

    def replays(self, model: Any) -> bool:
        """Whether updates of a model that reads sentences are replayed from CUDA graphs: not with
        pre-trained embeddings, which are looked up on the host, nor in parts, nor in one of several
        processes, whose rows vary in number.
        """
        is_static = not getattr(getattr(model, "embeddings", None), "wanted", False)
        on_cuda = next(model.parameters()).is_cuda
        is_whole = self.accumulate == 1 and launch().size == 1
        return self.cuda_graph and on_cuda and is_static and is_whole


SENTENCE_LENGTH = 16
"""Steps of a usual sentence, for choices before the first batch."""


@dataclass(frozen=True, kw_only=True)
class SamplingTrainingConfig(TrainingConfig):
    """Settings of the loop for a task that generates samples."""

    sample_length: int = 100
    """Length in tokens of the sample generated after each validation; 0: no sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("training.sample_length", self.sample_length, 0)

    def _halves_pay(self, model: Any) -> bool:
        from elman.nn.layer import halves_pay

        return halves_pay(model, self.batch_size, SENTENCE_LENGTH)

    def precision_notes(self, is_gpu: bool) -> list[str]:
        if is_gpu or self.precision != "auto":
            return super().precision_notes(is_gpu)
        from elman.nn.kernels import blocks

        if problem := blocks.problem():
            return [f"computed in float32: {problem}"]
        return ["products of LSTM layers in bfloat16 where it is faster, the rest in float32"]


@dataclass(frozen=True, kw_only=True)
class ChunkTrainingConfig(TrainingConfig):
    """Settings of the loop for a task that cuts running text into pieces."""

    chunk_length: int = 64
    """Tokens of each sequence per update; backpropagation through time is truncated there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("training.chunk_length", self.chunk_length, 1)


@dataclass(frozen=True, kw_only=True)
class LaneTrainingConfig(ChunkTrainingConfig, SamplingTrainingConfig):
    """Settings of the loop for a language model on lanes of running text."""

    start: str = ""
    """A run of the same task whose weights and tokenizer to start from; empty: a new model."""
    new_words: int = 0
    """With `start`: add the words or characters of the text that the run does not know and that
    occur this often; 0: none."""
    vary_chunks: bool = False
    """Draw each chunk's length around `chunk_length`, and scale the learning rate with it (Merity,
    Keskar and Socher, 2018).
    """
    shuffle_lanes: bool = False
    """Begin each lane at a random token, anew in every epoch, and read what is before it last
    (partial shuffle: Press, 2019).
    """
    reset_state: float = 0.0
    """Probability with which a lane forgets its state before a chunk (Melis and others, 2018:
    0.01), so that the model learns to start anew.
    """

    def _halves_pay(self, model: Any) -> bool:
        from elman.nn.layer import halves_pay

        return halves_pay(model, self.batch_size, self.chunk_length)

    def __post_init__(self) -> None:
        super().__post_init__()
        between("training.reset_state", self.reset_state, 0, 1, below=True)
        at_least("training.new_words", self.new_words, 0)
        if not self.start:
            refuse_unread(self, "training", ("new_words",), "start to a run")
