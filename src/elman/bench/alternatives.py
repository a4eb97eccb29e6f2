"""Choices of settings that somebody might make by hand, beside the automatic ones."""

from __future__ import annotations

from dataclasses import dataclass
from json import dumps


@dataclass(frozen=True)
class Alternative:
    """A sensible choice that somebody might make by hand."""

    cell: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    dropout: float = 0.0
    optimiser: str = ""
    learning_rate: float = 0.0
    batch_size: int = 0
    chunk_length: int = 0
    num_samples: int = 0
    """Noise words of a sampled output layer; 0 for a full one."""
    recipe: str = ""
    """A recipe to take as it is, instead of all of these."""

    @property
    def name(self) -> str:
        if self.recipe:
            return self.recipe
        parts = [
            f"{self.cell} {self.num_layers}x{self.hidden_size}",
            *([f"{self.num_samples} samples"] if self.num_samples else []),
            *([f"dropout {self.dropout:g}"] if self.dropout else []),
            f"{self.optimiser} {self.learning_rate:g}",
            f"{self.batch_size}x{self.chunk_length}",
        ]
        return ", ".join(parts)

    def arguments(self, unit: str) -> list[str]:
        """The options of `elman train lm`; embeddings of words are tied to the output layer."""
        if self.recipe:
            return ["--recipe", self.recipe]
        is_word = unit == "word"
        values: dict[str, object] = {
            "model.cell": self.cell,
            "model.num_layers": self.num_layers,
            "model.hidden_size": self.hidden_size,
            "model.embedding_size": self.hidden_size if is_word else 64,
            "model.tied": is_word,
            "model.head.kind": "sampled" if self.num_samples else "full",
            **({"model.head.num_samples": self.num_samples} if self.num_samples else {}),
            "model.dropout_input": self.dropout if is_word else 0,
            "model.dropout_hidden": self.dropout if self.num_layers > 1 else 0,
            "model.dropout_output": self.dropout,
            "optimiser.kind": self.optimiser,
            "optimiser.learning_rate": self.learning_rate,
            "schedule.kind": "cosine",
            "schedule.warmup_steps": 100,
            "training.batch_size": self.batch_size,
            "training.chunk_length": self.chunk_length,
            "training.clip_norm": 0.25 if self.optimiser == "sgd" else 1,
            "training.precision": "auto",
            **PLAIN,
        }
        words = (("--set", f"{key}={dumps(value).strip(QUOTE)}") for key, value in values.items())
        return [word for pair in words for word in pair]


QUOTE = '"'
PLAIN: dict[str, object] = {
    **{f"model.{name}": 0 for name in ("weight_drop", "dropout_embedding")},
    **{f"objective.{name}": 0 for name in ("activation_penalty", "change_penalty")},
    **{f"training.{name}": False for name in ("vary_chunks", "shuffle_lanes")},
    "model.locked": False,
    "optimiser.average": "none",
    "optimiser.weight_decay": 0,
}
"""Settings of all alternatives: without the parts of AWD-LSTM."""
# fmt: off
ALTERNATIVES: dict[tuple[str, str], list[Alternative]] = {
    #            cell  layers hidden dropout optimiser rate batch chunk samples
    ("char", "cpu"): [
        Alternative("gru",  1,  256,  0.0,  "adam",  0.005,  16,   64),
        Alternative("lstm", 1,  256,  0.0,  "adam",  0.005,  16,   64),
        Alternative("gru",  1,  128,  0.0,  "adam",  0.01,   16,   64),
        Alternative("lstm", 1,  256,  0.0,  "adam",  0.007,   8,   64),
        Alternative("lstm", 1,  384,  0.1,  "adam",  0.007,  16,   64),
        Alternative("gru",  1,  512,  0.2,  "adam",  0.003,  16,   64),
        Alternative("lstm", 1,  512,  0.2,  "adam",  0.005,  32,   64),
        Alternative("lstm", 1,  512,  0.1,  "adam",  0.006,  32,  128),
        Alternative("lstm", 2,  256,  0.2,  "adam",  0.004,  16,   64),
        Alternative("lstm", 2,  512,  0.4,  "adam",  0.003,  32,   64),
    ],
    ("word", "cpu"): [
        Alternative("lstm", 1,  256,  0.1,  "adam",  0.003,  20,   35,  1024),
        Alternative("lstm", 1,  128,  0.0,  "adam",  0.005,  20,   35,  1024),
        Alternative("lstm", 1,  256,  0.2,  "sgd",    20.0,  20,   35,  1024),
        Alternative("gru",  1,  256,  0.2,  "adam",  0.003,  20,   35,  1024),
        Alternative("lstm", 1,  200,  0.5,  "sgd",    20.0,  16,   35),
        Alternative("lstm", 1,  256,  0.3,  "adam",  0.003,  10,   35,   512),
        Alternative("lstm", 1,  400,  0.4,  "adam",  0.003,  20,   35,  1024),
        Alternative("lstm", 1,  400,  0.4,  "sgd",    20.0,  20,   35,  1024),
        Alternative("lstm", 2,  200,  0.3,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 1,  512,  0.5,  "sgd",    20.0,  20,   35,  1024),
    ],
    ("char", "gpu"): [
        Alternative("lstm", 2,  512,  0.3,  "adam",  0.003,  32,  128),
        Alternative("lstm", 1,  512,  0.3,  "adam",  0.003,  16,   64),
        Alternative("gru",  2,  512,  0.3,  "adam",  0.002,  32,  128),
        Alternative("lstm", 2,  768,  0.4,  "adam",  0.002,  64,  128),
        Alternative("lstm", 2,  768,  0.5,  "adam",  0.002,  32,   64),
        Alternative("lstm", 2, 1024,  0.5,  "adam",  0.002,  64,  128),
        Alternative("lstm", 3,  512,  0.4,  "adam",  0.003,  64,  128),
        Alternative("lstm", 3,  768,  0.5,  "adam",  0.002,  64,  128),
        Alternative("lstm", 1, 1024,  0.4,  "adam",  0.002,  32,   64),
        Alternative(recipe="awd-lstm"),
    ],
    ("word", "gpu"): [
        Alternative(recipe="awd-lstm"),
        Alternative("lstm", 2,  650,  0.5,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 2,  650,  0.5,  "adam",  0.002,  20,   35),
        Alternative("lstm", 2,  650,  0.5,  "sgd",    20.0,  40,   70),
        Alternative("lstm", 2,  400,  0.4,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 2, 1024, 0.65,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 2, 1024, 0.65,  "adam",  0.001,  40,   70),
        Alternative("lstm", 3,  650,  0.5,  "sgd",    20.0,  20,   70),
        Alternative("lstm", 1,  650,  0.6,  "sgd",    20.0,  20,   35),
        Alternative("lstm", 1,  400,  0.5,  "adam",  0.003,  20,   35),
    ],
}
# fmt: on
"""By unit and kind of machine: cells, widths, depths, batches, dropouts and optimisers that are
usual at these sizes, the most promising first.
"""
