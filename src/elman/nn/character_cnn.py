"""Word vectors from spellings: a convolution over characters (Kim and others, 2016; ELMo's input).

A word is its UTF-8 bytes between a begin mark and an end mark. Filters of several widths slide over
their vectors, each keeps its highest response, highway layers mix the responses, and a matrix
brings them to the embedding's width. Each word type of a batch is computed once, however often it
occurs.

U word types of the batch, V vocabulary, C characters, D character vector, F filters, E embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.nn.dropout import drop_rows
from elman.nn.shapes import Float, Int

PADDING, BEGIN, END = 0, 257, 258
NUM_SYMBOLS = 259
"""Padding, 256 bytes (each one higher than its value), begin and end."""


@dataclass(frozen=True, kw_only=True)
class CharacterCNNConfig:
    """A convolution over a word's spelling."""

    character_size: int = 16
    """Numbers per character."""
    filters: tuple[int, ...] = (25, 50, 75, 100, 125, 150)
    """How many filters of width 1, 2, 3 and so on."""
    activation: Literal["tanh", "relu"] = "tanh"
    """What a filter's response goes through."""
    num_highway: int = 1
    """Highway layers over the filters' responses."""
    max_characters: int = 32
    """Bytes of a word that are read, begin and end marks included."""


class CharacterCNN(nn.Module):
    """Vectors for all words of a vocabulary, from a table of their spellings."""

    characters_VC: Tensor

    def __init__(
        self,
        config: CharacterCNNConfig,
        vocab_size: int,
        embedding_size: int,
        *,
        spellings: Sequence[str] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if config.max_characters < max(3, len(config.filters)):
            raise UsageError(
                f"max_characters {config.max_characters} is less than the widest filter needs",
                "make max_characters larger, or give fewer filters",
            )
        self.config = config
        self.dropout = dropout
        table_VC = torch.zeros(vocab_size, config.max_characters, dtype=torch.int16)
        if spellings is not None:
            table_VC = spelling_table(spellings, config.max_characters)
        self.register_buffer("characters_VC", table_VC)
        self.characters = nn.Embedding(NUM_SYMBOLS, config.character_size, padding_idx=PADDING)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.character_size, count, width)
            for width, count in enumerate(config.filters, start=1)
        )
        num_filters = sum(config.filters)
        self.highways = nn.ModuleList(HighwayLayer(num_filters) for _ in range(config.num_highway))
        self.projection = nn.Linear(num_filters, embedding_size)

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch E"]:
        """The vectors of the tokens."""
        types_U, places = torch.unique(tokens, return_inverse=True)
        vectors_UE = self.spelled(self.characters_VC[types_U])
        if self.training and self.dropout:
            vectors_UE = vectors_UE * drop_rows(vectors_UE, self.dropout)
        if tokens.dim() == 2:
            # Laid out time first, as the recurrent kernels want it: they will not have to copy.
            return F.embedding(places.t(), vectors_UE).transpose(0, 1)
        return F.embedding(places, vectors_UE)

    def all_types(self) -> Float[Tensor, "V E"]:
        """The vector of every word of the vocabulary (type-based embeddings)."""
        return torch.cat([self.spelled(chunk) for chunk in torch.split(self.characters_VC, 4096)])

    def spelled(self, characters_UC: Int[Tensor, "U C"]) -> Float[Tensor, "U E"]:
        """The vectors of words given by their spelling, in the vocabulary or not."""
        lengths_U = (characters_UC != PADDING).sum(1)
        # The longest word at hand decides how much is computed; windows beyond a word's end do not
        # count.
        longest = max(int(lengths_U.max()), len(self.config.filters))
        vectors_UDC = self.characters(characters_UC[:, :longest].long()).transpose(1, 2)
        responses = []
        for width, convolution in enumerate(self.convolutions, start=1):
            responses_UFC = convolution(vectors_UDC)
            start_C = torch.arange(responses_UFC.shape[2], device=lengths_U.device)
            beyond_UC = start_C > (lengths_U - width).clamp(min=0).unsqueeze(1)
            responses_UFC = responses_UFC.masked_fill(beyond_UC.unsqueeze(1), -torch.inf)
            responses.append(getattr(torch, self.config.activation)(responses_UFC.amax(2)))
        mixed_UF = torch.cat(responses, dim=1)
        for highway in self.highways:
            mixed_UF = highway(mixed_UF)
        return cast(Tensor, self.projection(mixed_UF))


class HighwayLayer(nn.Module):
    """t * relu(A y + a) + (1 - t) * y, t = sigmoid(T y + c); c starts at -2, as in Kim."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, inputs: Float[Tensor, "*batch F"]) -> Float[Tensor, "*batch F"]:
        """The gated mean of the transformed and the carried."""
        gate = torch.sigmoid(self.gate(inputs))
        return gate * torch.relu(self.transform(inputs)) + (1 - gate) * inputs


def spelling_table(spellings: Sequence[str], max_characters: int) -> Int[Tensor, "V C"]:
    """Each word's bytes between a begin and an end mark, cut to fit, padded with zeros."""
    table_VC = torch.zeros(len(spellings), max_characters, dtype=torch.int16)
    for row, spelling in enumerate(spellings):
        symbols = [byte + 1 for byte in spelling.encode("utf-8")[: max_characters - 2]]
        table_VC[row, : len(symbols) + 2] = torch.tensor([BEGIN, *symbols, END], dtype=torch.int16)
    return table_VC
