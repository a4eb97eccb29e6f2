"""Contextual word vectors: sentences of words in, the vectors of every layer out.

Task models use an `Embedder` beside their own word vectors, and `elman embed` writes its output.
`LeftContext` turns a causal language model into one: a word's vector is the model's state at its
last token. Tasks may define others.

L layers, B batch, T words, D numbers per word and layer, S tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from elman.nn.shapes import Float, Int
from elman.nn.state import State
from elman.tokens.tokenizer import Tokenizer

Sentences = Sequence[Sequence[str]]


class Embedder(nn.Module, ABC):
    """Words in context as vectors, one per layer; all layers have the same width."""

    num_layers: int
    """Vectors per word; the lowest is context-free if the widths allow it."""
    size: int
    """Width of each vector."""

    @abstractmethod
    def read(
        self, sentences: Sentences, state: State | None = None
    ) -> tuple[Float[Tensor, "L B T D"], Int[Tensor, "B"], State]:
        """Return all layers' vectors (zeros beyond a sentence's end), the number of words of each
        sentence (on the CPU), and the state after each.

        Sentences start from `state`, or each from the initial state. Gradients flow unless the
        parameters are frozen.
        """

    def forward(self, sentences: Sentences) -> tuple[Float[Tensor, "L B T D"], Int[Tensor, "B"]]:
        """Like `read`, each sentence by itself: the same sentence always has the same vectors."""
        layers_LBTD, lengths_B, _ = self.read(sentences)
        return layers_LBTD, lengths_B

    def forget(self) -> None:
        """Drop what was computed from the weights and cached: call it after changing them."""

    @abstractmethod
    def groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters that affect the vectors, bottom layer first, for gradual unfreezing
        and learning rates per layer."""


@runtime_checkable
class LayeredLM(Protocol):
    """A causal language model that gives the vectors of its layers."""

    @property
    def widths(self) -> list[int]:
        """Numbers per token of the input vectors and of each layer's."""
        ...

    def all_layers(
        self, tokens_BT: Int[Tensor, "B T"], state: State | None, lengths_B: Int[Tensor, "B"]
    ) -> tuple[list[Tensor], State]:
        """Read T tokens; return the vectors of each layer, the input's first, and the state after
        each row's last real token.
        """
        ...

    def groups(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the input and of each layer."""
        ...


class LeftContext(Embedder):
    """The layers of a causal language model that have the top layer's width, the input vectors
    included.

    A word may be several tokens: its vector is the one after the last of them.
    """

    model: LayeredLM

    def __init__(self, model: LayeredLM, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.size = model.widths[-1]
        self._kept = [i for i, width in enumerate(model.widths) if width == self.size]
        self.num_layers = len(self._kept)

    def read(
        self, sentences: Sentences, state: State | None = None
    ) -> tuple[Float[Tensor, "L B T D"], Int[Tensor, "B"], State]:
        """Read each sentence after the boundary token."""
        spelled = [self._spell(words) for words in sentences]
        lengths_B = torch.tensor([len(words) for words in sentences])
        read_lengths = torch.tensor([len(tokens) for tokens, _ in spelled])
        tokens_BS = torch.full((len(spelled), int(read_lengths.max())), self.tokenizer.boundary_id)
        ends_BT = torch.zeros(len(spelled), int(lengths_B.max()), dtype=torch.long)
        for row, (tokens, ends) in enumerate(spelled):
            tokens_BS[row, : len(tokens)] = torch.tensor(tokens)
            ends_BT[row, : len(ends)] = torch.tensor(ends, dtype=torch.long)
        device = next(self.parameters()).device
        layers, state = self.model.all_layers(tokens_BS.to(device), state, read_lengths)
        layers_LBSD = torch.stack([layers[i] for i in self._kept])
        ends_LBTD = ends_BT.to(device)[None, :, :, None].expand(self.num_layers, -1, -1, self.size)
        real_BT1 = (torch.arange(ends_BT.shape[1]) < lengths_B.unsqueeze(1)).unsqueeze(2)
        layers_LBTD = torch.where(real_BT1.to(device), layers_LBSD.gather(2, ends_LBTD), 0)
        return layers_LBTD, lengths_B, state

    def groups(self) -> list[list[nn.Parameter]]:
        return self.model.groups()

    def _spell(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the tokens of a sentence after a boundary, and the position of each word's last
        token."""
        tokens = [self.tokenizer.boundary_id]
        ends = []
        for index, word in enumerate(words):
            tokens.extend(self.tokenizer.encode(f" {word}" if index else word).tolist())
            ends.append(len(tokens) - 1)
        return tokens, ends
