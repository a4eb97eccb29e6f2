"""Word vectors from spellings: a bidirectional LSTM, or another cell, over bytes (Ling and others,
2015).

A word's vector is the last hidden state of both directions.

U words, C characters, E embedding.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor, nn

from elman.nn.character_cnn import KIM
from elman.nn.shapes import Float, Int
from elman.nn.stack import CellConfig, Stack, StackConfig


class CharacterRNN(nn.Module):
    def __init__(self, character_size: int, embedding_size: int, cell: CellConfig) -> None:
        super().__init__()
        self.characters = nn.Embedding(KIM.num_symbols, character_size, padding_idx=KIM.padding)
        choices = {f.name: getattr(cell, f.name) for f in fields(CellConfig)}
        config = StackConfig(hidden_size=(embedding_size + 1) // 2, **choices)
        self.stack = Stack(config, character_size, bidirectional=True)
        self.output_size = self.stack.output_size

    def spelled(self, characters_UC: Int[Tensor, "U C"]) -> Float[Tensor, "U E"]:
        """Word vectors for rows of `character_cnn.spelling_table`."""
        lengths_U = (characters_UC != KIM.padding).sum(1)
        longest = int(lengths_U.max())
        vectors_UCD = self.characters(characters_UC[:, :longest].long())
        _, state = self.stack(vectors_UCD, None, lengths_U)
        level = state.part("0")
        last = [level.part(name).tensor("h") for name in ("forward", "backward")]
        return torch.cat(last, dim=1)
