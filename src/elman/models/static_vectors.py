"""Context-free word vectors (word2vec, GloVe) as an embedder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elman.models.embedder import Embedder, Sentences
from elman.nn.shapes import Float, Int
from elman.nn.state import State

UNKNOWN_ID = 0
"""The row of words without a vector: zeros."""


class StaticVectors(Embedder):
    """A table with one layer. A word that is not in it is looked up in lower case."""

    num_layers = 1

    def __init__(self, words: Sequence[str], vectors_VD: Float[Tensor, "V D"]) -> None:
        super().__init__()
        self.size = vectors_VD.shape[1]
        self._ids = {word: number for number, word in enumerate(words, start=1)}
        rows_VD = torch.cat([vectors_VD.new_zeros(1, self.size), vectors_VD])
        self.table = nn.Embedding(len(rows_VD), self.size, padding_idx=UNKNOWN_ID, _weight=rows_VD)

    def read(
        self, sentences: Sentences, state: State | None = None
    ) -> tuple[Float[Tensor, "1 B T D"], Int[Tensor, "B"], State]:
        lengths_B = torch.tensor([len(words) for words in sentences])
        ids_BT = torch.full((len(sentences), int(lengths_B.max())), UNKNOWN_ID)
        for row, words in enumerate(sentences):
            ids = [self._ids.get(w) or self._ids.get(w.lower(), UNKNOWN_ID) for w in words]
            ids_BT[row, : len(words)] = torch.tensor(ids, dtype=torch.long)
        return self.table(ids_BT.to(self.table.weight.device)).unsqueeze(0), lengths_B, State({})

    def groups(self) -> list[list[nn.Parameter]]:
        return [list(self.table.parameters())]
