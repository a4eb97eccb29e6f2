"""The fixed-window neural language model (Bengio and others, 2003).

    e = [e_1; e_2; ...; e_n]          the embeddings of the last n words, side by side
    h = tanh(W e + b_1)
    y = softmax(U h + b_2)            with direct connections softmax(U h + D e + b_2)

W grows with the window. The state is the last n - 1 words, initially boundary tokens.

B batch, T time steps, V vocabulary, E embedding, X window size times E, H hidden (plus X, if
direct).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from elman.base.config import at_least, between
from elman.models.interface import Hidden, NetworkLM
from elman.nn.cells import Nonlinearity
from elman.nn.dropout import Dropout
from elman.nn.heads import HEADS, Head, HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.initial import uniform_matrices
from elman.nn.inputs import Lookup
from elman.nn.shapes import Int
from elman.nn.state import State


@dataclass(frozen=True, kw_only=True)
class WindowLMConfig:
    """A fixed-window neural language model."""

    kind: Literal["window"] = "window"
    window_size: int = 4
    """Number of previous words that are read (n - 1 in an n-gram)."""
    embedding_size: int = 64
    """Numbers per word at the input."""
    vectors: str = ""
    """A file of word vectors (word2vec, GloVe) from which the embeddings of its words start; empty
    for none. It is read once: the run folder does not need it later."""
    hidden_size: int = 256
    """Units of the hidden layer."""
    nonlinearity: Nonlinearity = "tanh"
    """The hidden layer's function: tanh (the original), sigmoid or relu."""
    direct: bool = False
    """Whether the output layer also reads the embeddings directly, an option of the original."""
    head: HeadConfig = field(default_factory=FullConfig, metadata={"table": HEADS})
    """The output layer."""
    dropout_embedding: float = 0.0
    """Probability to drop a word's whole embedding for a batch."""
    dropout_input: float = 0.0
    """Dropout on the embeddings."""
    dropout_output: float = 0.0
    """Dropout between the hidden layer and the output layer."""
    init_range: float = 0.0
    """Initialise matrices uniformly within plus or minus this; 0: each layer's default."""

    def __post_init__(self) -> None:
        for name in ("window_size", "embedding_size", "hidden_size"):
            at_least(f"model.{name}", getattr(self, name), 1)
        at_least("model.init_range", self.init_range, 0)
        for name in ("embedding", "input", "output"):
            between(f"model.dropout_{name}", getattr(self, f"dropout_{name}"), 0, 1, below=True)

    def build(
        self,
        vocab_size: int,
        *,
        counts_V: Tensor | None = None,
        spellings: list[str] | None = None,
        boundary_id: int = 0,
    ) -> WindowLM:
        """Build a model; `boundary_id` fills the window before the start of a text."""
        return WindowLM(self, vocab_size, counts_V=counts_V, boundary_id=boundary_id)


class WindowLM(NetworkLM):
    """Embeddings of a few words, a hidden layer and an output layer."""

    boundary: Tensor

    def __init__(
        self,
        config: WindowLMConfig,
        vocab_size: int,
        *,
        counts_V: Tensor | None = None,
        boundary_id: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        width = config.window_size * config.embedding_size
        self.register_buffer("boundary", torch.tensor(boundary_id))
        self.input = Lookup(vocab_size, config.embedding_size, dropout=config.dropout_embedding)
        self.dropout_input = Dropout(config.dropout_input, locked=False)
        self.layer = nn.Linear(width, config.hidden_size)
        self.dropout_output = Dropout(config.dropout_output, locked=False)
        # U h + D e is one product with [h; e]: direct connections are columns of the output matrix.
        self.head: Head = config.head.build(
            config.hidden_size + (width if config.direct else 0), vocab_size, counts_V=counts_V
        )
        if config.init_range:
            uniform_matrices(self, config.init_range)

    @property
    def reach(self) -> int:
        """Number of tokens that a prediction depends on."""
        return self.config.window_size

    def initial_state(self, batch_size: int) -> State:
        return State({"tokens": self.boundary.repeat(batch_size, self.config.window_size - 1)})

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the hidden vector after each (if direct, with the window)."""
        num_steps = tokens_BT.shape[1]
        seen = torch.cat([state.tensor("tokens"), tokens_BT], dim=1)
        embedded = self.dropout_input(self.input(seen))
        context_BTX = torch.cat(
            [embedded[:, i : i + num_steps] for i in range(self.config.window_size)], dim=-1
        )
        raw_BTH = getattr(torch, self.config.nonlinearity)(self.layer(context_BTX))
        if self.config.direct:
            raw_BTH = torch.cat([raw_BTH, context_BTX], dim=-1)
        hidden = Hidden(dropped_BTH=self.dropout_output(raw_BTH), raw_BTH=raw_BTH)
        return hidden, State({"tokens": seen[:, num_steps:]})
