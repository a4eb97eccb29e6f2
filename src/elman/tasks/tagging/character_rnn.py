"""Word vectors from spellings: a bidirectional LSTM, or another cell, over bytes (Ling and others,
2015).

A word's vector is the last hidden state of both directions.

U words, C characters, E embedding.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from elman.nn.character_cnn import KIM
from elman.nn.shapes import Float, Int
from elman.nn.stack import Stack, StackConfig


class CharacterRNN(nn.Module):
    def __init__(self, character_size: int, embedding_size: int, layer: StackConfig) -> None:
        """`layer` has the choices of the cell."""
        super().__init__()
        self.characters = nn.Embedding(KIM.num_symbols, character_size, padding_idx=KIM.padding)
        layer = replace(layer, hidden_size=(embedding_size + 1) // 2)
        self.stack = Stack(layer, character_size, bidirectional=True)
        self.output_size = self.stack.output_size

    def spelled(
        self, characters_UC: Int[Tensor, "U C"], longest: int | None = None
    ) -> Float[Tensor, "U E"]:
        """Word vectors for rows of `character_cnn.spelling_table`; `longest` is as there."""
        lengths_U = (characters_UC != KIM.padding).sum(1)
        if longest is None:
            longest = int(lengths_U.max())
        vectors_UCD = self.characters(characters_UC[:, :longest].long())
        _, state = self.stack(vectors_UCD, None, lengths_U)
        level = state.part("0")
        last = [level.part(name).tensor("h") for name in ("forward", "backward")]
        return torch.cat(last, dim=1)
