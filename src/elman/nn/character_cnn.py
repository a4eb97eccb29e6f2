"""Word vectors from spellings: a convolution over characters (Kim and others, 2016; ELMo's input).

A word is its UTF-8 bytes between a begin mark and an end mark. Filters of several widths slide over
their vectors, the maximum over positions is taken, highway layers mix the results, and a matrix
projects them to the embedding size. Each word type of a batch is computed once. ELMo's published
weights also read the padding behind a word, as a separate symbol, and have two symbols for the
marks around a sentence (`Alphabet`).

U word types of the batch, V vocabulary, C characters, D character vector, F filters, E embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least, between
from elman.base.errors import UsageError
from elman.nn.dropout import drop_rows
from elman.nn.shapes import Float, Int

NOTHING = 0
"""The symbol whose vector is zero."""
MOST_CHARACTERS = 1000
"""The limit of max_characters: the table of spellings has this many numbers per word."""


@dataclass(frozen=True)
class Alphabet:
    """Symbols of a spelling: 1 to 256 are the bytes, each its value plus one; and these."""

    begin: int
    end: int
    """Marks around each word."""
    padding: int
    """After the word."""
    num_symbols: int
    """All symbols, `NOTHING` included."""


KIM = Alphabet(begin=257, end=258, padding=NOTHING, num_symbols=259)
ELMO = Alphabet(begin=259, end=260, padding=261, num_symbols=262)
BEGIN_SENTENCE, END_SENTENCE = 257, 258
"""Marks around a sentence in ELMo's alphabet, each between the marks of a word."""


@dataclass(frozen=True, kw_only=True)
class CharacterCNNConfig:
    """A convolution over a word's spelling."""

    character_size: int = 16
    """Size of a character vector."""
    filters: tuple[int, ...] = (25, 50, 75, 100, 125, 150)
    """Number of filters of width 1, 2, 3 and so on."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the filters."""
    num_highway: int = 1
    """Number of highway layers over the filters."""
    max_characters: int = 32
    """Maximum bytes read of a word, begin and end marks included."""
    padding: Literal["ignored", "read"] = "ignored"
    """Padding behind a word: ignored, or read as a symbol, as in ELMo."""

    def __post_init__(self) -> None:
        at_least("model.character_cnn.character_size", self.character_size, 1)
        at_least("model.character_cnn.num_highway", self.num_highway, 0)
        between("model.character_cnn.max_characters", self.max_characters, 3, MOST_CHARACTERS)
        for number in self.filters:
            at_least("model.character_cnn.filters", number, 1)

    @property
    def alphabet(self) -> Alphabet:
        return ELMO if self.padding == "read" else KIM


class CharacterCNN(nn.Module):
    """Vectors for all words of a vocabulary, from a table of their spellings."""

    characters_VC: Tensor

    def __init__(
        self,
        config: CharacterCNNConfig,
        vocab_size: int,
        embedding_size: int,
        *,
        spellings: Sequence[str | int] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if config.max_characters < len(config.filters):
            raise UsageError(
                f"max_characters {config.max_characters} is too small for the widest filter",
                "raise max_characters, or use fewer filters",
            )
        self.config = config
        self.dropout = dropout
        table_VC = torch.zeros(vocab_size, config.max_characters, dtype=torch.int16)
        if spellings is not None and not table_VC.is_meta:
            table_VC = spelling_table(spellings, config.max_characters, config.alphabet)
        self.register_buffer("characters_VC", table_VC)
        self.characters = nn.Embedding(
            config.alphabet.num_symbols, config.character_size, padding_idx=NOTHING
        )
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.character_size, count, width)
            for width, count in enumerate(config.filters, start=1)
        )
        num_filters = sum(config.filters)
        self.highways = nn.ModuleList(HighwayLayer(num_filters) for _ in range(config.num_highway))
        self.projection = nn.Linear(num_filters, embedding_size)

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch E"]:
        types_U, places = torch.unique(tokens, return_inverse=True)
        vectors_UE = self.spelled(self.characters_VC[types_U])
        if self.training and self.dropout:
            vectors_UE = vectors_UE * drop_rows(vectors_UE, self.dropout)
        if tokens.dim() == 2:
            # Time first in memory, which saves the recurrent kernels a copy.
            return F.embedding(places.t(), vectors_UE).transpose(0, 1)
        return F.embedding(places, vectors_UE)

    def all_types(self) -> Float[Tensor, "V E"]:
        """Return the vector of every word of the vocabulary (type-based embeddings)."""
        return torch.cat([self.spelled(chunk) for chunk in torch.split(self.characters_VC, 4096)])

    def spelled(
        self, characters_UC: Int[Tensor, "U C"], longest: int | None = None
    ) -> Float[Tensor, "U E"]:
        """Return the vectors of words given by their spelling, in the vocabulary or not.

        `longest` is the number of symbols of the longest word, if the caller knows it: reading it
        from the device would mean waiting for the device.
        """
        lengths_U = (characters_UC != self.config.alphabet.padding).sum(1)
        if longest is None:
            longest = int(lengths_U.max())
        # Compute only up to the longest word. If padding is read, one window of padding alone has
        # the response of all others.
        widest = len(self.config.filters)
        reads_padding = self.config.padding == "read"
        longest = longest + widest if reads_padding else max(longest, widest)
        if not reads_padding and (missing := longest - characters_UC.shape[1]) > 0:
            characters_UC = F.pad(characters_UC, (0, missing), value=self.config.alphabet.padding)
        vectors_UDC = self.characters(characters_UC[:, :longest].long()).transpose(1, 2)
        responses = []
        for width, convolution in enumerate(self.convolutions, start=1):
            responses_UFC = convolution(vectors_UDC)
            if not reads_padding:  # mask windows beyond a word's end
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
        gate = torch.sigmoid(self.gate(inputs))
        return gate * torch.relu(self.transform(inputs)) + (1 - gate) * inputs


def spelling_table(
    spellings: Sequence[str | int], max_characters: int, alphabet: Alphabet = KIM
) -> Int[Tensor, "V C"]:
    """Return each word's bytes between a begin and an end mark, truncated, then padded.

    An integer stands for a word of that one symbol.
    """
    table_VC = np.full((len(spellings), max_characters), alphabet.padding, np.int16)
    table_VC[:, 0] = alphabet.begin
    for row, spelling in enumerate(spellings):
        if isinstance(spelling, int):
            table_VC[row, 1:3] = spelling, alphabet.end
            continue
        symbols = np.frombuffer(spelling.encode("utf-8")[: max_characters - 2], np.uint8)
        table_VC[row, 1 : len(symbols) + 1] = symbols
        table_VC[row, 1 : len(symbols) + 1] += 1
        table_VC[row, len(symbols) + 1] = alphabet.end
    return torch.from_numpy(table_VC)
