"""The fixed-window neural language model (Bengio and others, 2003).

    e   = [e_1; e_2; ...; e_n]              the embeddings of the last n words, side by side
    h_1 = tanh(W_1 e + b_1)
    h_l = tanh(W_l h_{l-1} + b_l)           l = 2, ..., L, if there are several hidden layers
    y   = softmax(U h_L + b)                with direct connections softmax(U h_L + D e + b)

W_1 grows with the window. Layers from the second on may be joined as recurrent ones are
(`nn/stack.py`), so that gradients reach the first of many. The state is the last n - 1 words,
initially boundary tokens.

B batch, T time steps, V vocabulary, E embedding, X window size times E, H hidden (plus X, if
direct).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least, between, refuse_unread
from elman.models.interface import Hidden, NetworkLM
from elman.nn.cells import Nonlinearity
from elman.nn.dropout import Dropout
from elman.nn.heads import HEADS, Head, HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.initial import uniform_matrices
from elman.nn.inputs import Lookup
from elman.nn.shapes import Float, Int
from elman.nn.stack import JOINS, Join
from elman.nn.state import State


@dataclass(frozen=True, kw_only=True)
class WindowLMConfig:
    """A fixed-window neural language model."""

    kind: Literal["window"] = "window"
    window_size: int = 4
    """Number of previous words that are read (n - 1 in an n-gram)."""
    embedding_size: int = 64
    """Numbers per word at the input."""
    num_layers: int = 1
    """Number of hidden layers; the original has one."""
    hidden_size: int = 256
    """Units of each hidden layer."""
    nonlinearity: Nonlinearity = "tanh"
    """The hidden layers' function: tanh (the original), sigmoid or relu."""
    join: Join = "plain"
    """How hidden layers from the second on are joined: plain, residual, highway or dense."""
    direct: bool = False
    """Whether the output layer also reads the embeddings directly, an option of the original."""
    head: HeadConfig = field(default_factory=FullConfig, metadata={"table": HEADS})
    """The output layer."""
    dropout_embedding: float = 0.0
    """Probability to drop a word's whole embedding for a batch."""
    dropout_input: float = 0.0
    """Dropout on the embeddings."""
    dropout_hidden: float = 0.0
    """Dropout between hidden layers."""
    dropout_output: float = 0.0
    """Dropout between the last hidden layer and the output layer."""
    init_range: float = 0.0
    """Initialise matrices uniformly within plus or minus this; 0: each layer's default."""

    def __post_init__(self) -> None:
        for name in ("window_size", "embedding_size", "num_layers", "hidden_size"):
            at_least(f"model.{name}", getattr(self, name), 1)
        at_least("model.init_range", self.init_range, 0)
        for name in ("embedding", "input", "hidden", "output"):
            between(f"model.dropout_{name}", getattr(self, f"dropout_{name}"), 0, 1, below=True)
        if self.num_layers == 1:
            refuse_unread(self, "model", ["join", "dropout_hidden"], "num_layers to 2 or more")

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
    """Embeddings of a few words, hidden layers and an output layer."""

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
        self.deeper = nn.ModuleList()
        self.joins = nn.ModuleList()
        for level in range(1, config.num_layers):
            below = config.hidden_size
            if config.join == "dense":
                below = width + level * config.hidden_size
            self.deeper.append(nn.Linear(below, config.hidden_size))
            if config.join in JOINS:
                self.joins.append(JOINS[config.join](below, config.hidden_size))
        self.dropout_hidden = Dropout(config.dropout_hidden, locked=False)
        self.dropout_output = Dropout(config.dropout_output, locked=False)
        # U h + D e is one product with [h; e]: direct connections are columns of the output matrix.
        self.head: Head = config.head.build(
            config.hidden_size + (width if config.direct else 0), vocab_size, counts_V=counts_V
        )
        if config.init_range:
            uniform_matrices(self, config.init_range)

    def initial_state(self, batch_size: int) -> State:
        return State({"tokens": self.boundary.repeat(batch_size, self.config.window_size - 1)})

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the last hidden vector after each (if direct, with the window)."""
        seen, _, context_BTX = self._read(tokens_BT, state)
        raw_BTH = self._climb(context_BTX)[-1]
        if self.config.direct:
            raw_BTH = torch.cat([raw_BTH, context_BTX], dim=-1)
        hidden = Hidden(dropped_BTH=self.dropout_output(raw_BTH), raw_BTH=raw_BTH)
        return hidden, State({"tokens": seen[:, tokens_BT.shape[1] :]})

    @property
    def widths(self) -> list[int]:
        """Numbers per token of the word vectors and of each hidden layer's: all the same, because
        zeros fill up the narrower ones."""
        width = max(self.config.embedding_size, self.config.hidden_size)
        return [width] * (1 + self.config.num_layers)

    def all_layers(
        self, tokens_BT: Int[Tensor, "B T"], state: State | None, lengths_B: Int[Tensor, "B"]
    ) -> tuple[list[Tensor], State]:
        """Read T tokens; return their word vectors, the vectors of each hidden layer, and the state
        after each row's last real token.
        """
        if state is None:
            state = self.initial_state(len(tokens_BT))
        seen, embedded_BTE, context_BTX = self._read(tokens_BT, state)
        layers = [embedded_BTE, *self._climb(context_BTX)]
        padded = [F.pad(layer, (0, self.widths[0] - layer.shape[-1])) for layer in layers]
        last = torch.arange(self.config.window_size - 1) + lengths_B.cpu().unsqueeze(1)
        return padded, State({"tokens": seen.gather(1, last.to(seen.device))})

    def groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the word vectors and of each hidden layer, with its join."""
        groups = [list(self.input.parameters()), list(self.layer.parameters())]
        for level, layer in enumerate(self.deeper):
            join = list(self.joins[level].parameters()) if self.joins else []
            groups.append([*layer.parameters(), *join])
        return groups

    def _read(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens with those of the state before them, their word vectors, and the
        window that ends in each."""
        num_steps = tokens_BT.shape[1]
        seen = torch.cat([state.tensor("tokens"), tokens_BT], dim=1)
        embedded = self.dropout_input(self.input(seen))
        windows = [embedded[:, i : i + num_steps] for i in range(self.config.window_size)]
        return seen, windows[-1], torch.cat(windows, dim=-1)

    def _climb(self, context_BTX: Float[Tensor, "B T X"]) -> list[Tensor]:
        """Return the vectors of all hidden layers."""
        nonlinearity = getattr(torch, self.config.nonlinearity)
        outputs: list[Tensor] = [nonlinearity(self.layer(context_BTX))]
        below = [context_BTX]
        for level, layer in enumerate(self.deeper):
            below.append(self.dropout_hidden(outputs[-1]))
            entering = torch.cat(below, dim=-1) if self.config.join == "dense" else below[-1]
            output = nonlinearity(layer(entering))
            outputs.append(self.joins[level](entering, output) if self.joins else output)
        return outputs
