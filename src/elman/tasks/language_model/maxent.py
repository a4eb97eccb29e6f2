"""The maximum-entropy language model over hashed n-grams (Mikolov and others, 2011).

    y = softmax(b + sum over n from 2 to the order of table[hash(the last n - 1 words) + w])

A log-linear model with one weight per n-gram, in a table whose slots n-grams share. There is no
hidden layer: the output layer reads hashed contexts alone. `maxent_order` of the recurrent model
adds the same weights to a network.

B batch, T time steps, V vocabulary, H hidden (size 0).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from elman.base.config import at_least
from elman.models.interface import Hidden, NetworkLM
from elman.nn.hashed_ngrams import Contexts
from elman.nn.heads import HEADS, Head, HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.shapes import Int
from elman.nn.state import State


@dataclass(frozen=True, kw_only=True)
class MaxEntLMConfig:
    """A maximum-entropy language model over hashed n-grams."""

    kind: Literal["maxent"] = "maxent"
    order: int = 5
    """Length of the longest n-grams."""
    size: int = 1 << 22
    """Slots of the table in which n-grams share their weights."""
    head: HeadConfig = field(default_factory=FullConfig, metadata={"table": HEADS})
    """The output layer: full or sampled."""

    def __post_init__(self) -> None:
        at_least("model.order", self.order, 2)
        at_least("model.size", self.size, 1)

    def build(
        self,
        vocab_size: int,
        *,
        counts_V: Tensor | None = None,
        spellings: list[str] | None = None,
        boundary_id: int = 0,
    ) -> MaxEntLM:
        """Build a model with zero weights, and biases from `counts_V` if given."""
        return MaxEntLM(self, vocab_size, counts_V=counts_V)


class MaxEntLM(NetworkLM):
    """Hashed contexts and an output layer."""

    def __init__(
        self, config: MaxEntLMConfig, vocab_size: int, *, counts_V: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.contexts = Contexts(config.order, config.size, vocab_size)
        self.head: Head = config.head.build(0, vocab_size, counts_V=counts_V)
        self.head.connect_ngrams(config.size)

    @property
    def reach(self) -> int:
        """Number of tokens that a prediction depends on."""
        return self.config.order - 1

    def initial_state(self, batch_size: int) -> State:
        device = next(self.parameters()).device
        return State({"tokens": self.contexts.initial(batch_size, device)})

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the contexts after each, and an empty vector."""
        contexts_BTO, last_BC = self.contexts.read(tokens_BT, state.tensor("tokens"))
        empty_BTH = next(self.parameters()).new_empty(*tokens_BT.shape, 0)
        hidden = Hidden(dropped_BTH=empty_BTH, raw_BTH=empty_BTH, contexts_BTO=contexts_BTO)
        return hidden, State({"tokens": last_BC})
