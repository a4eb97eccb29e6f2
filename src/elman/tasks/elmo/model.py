"""ELMo's bidirectional language model (Peters and others, 2018): a forward and a backward language
model over one character convolution.

    x_t = cnn(characters of w_t)
    forward     h_t = layers(x_t, h_{t-1})      P(w_{t+1} | w_1 ... w_t)     = softmax(V h_t)
    backward    h_t = layers(x_t, h_{t+1})      P(w_{t-1} | w_t ... w_n)     = softmax(V h_t)

Layers are LSTMs with a projection (Sak and others, 2014) whose cells and outputs may be clipped, or
have any other cell; from the second on, a layer's input is added to its output. The directions
share the convolution and, optionally, the softmax. Words are read by their spelling, so that none
is unknown; only the frequent ones are predicted. `ElmoEmbedder` gives the vectors of all layers.

B batch, T words, U word types, C characters, E projected width, D = 2 E, L layers, V words that are
predicted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least, check_reads, refuse_unread
from elman.models.embedder import Embedder, Sentences
from elman.nn.character_cnn import (
    BEGIN_SENTENCE,
    END_SENTENCE,
    CharacterCNN,
    CharacterCNNConfig,
    spelling_table,
)
from elman.nn.dropout import Dropout, drop_rows
from elman.nn.heads import HEADS, Head, HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.layer import RecurrentLayer
from elman.nn.shapes import Float, Int
from elman.nn.stack import CellConfig, LayersConfig, make_cell, tell_depths
from elman.nn.state import State
from elman.tasks.task import WordTable

MARKS = ("<S>", "</S>")
"""Begin and end of a sentence, as in ELMo's vocabularies; each is a symbol of its own."""
SYMBOLS: dict[str, int] = dict(zip(MARKS, (BEGIN_SENTENCE, END_SENTENCE), strict=True))
CLIPS = ("cell_clip", "projection_clip")
"""Settings that only ELMo's LSTM reads."""
MOST_CACHED = 1 << 16
"""The most word types in the cache of vectors."""
TYPES_AT_ONCE = 1 << 12
"""The most word types in one pass of the convolution."""


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(LayersConfig, CellConfig):
    """A bidirectional language model over characters (ELMo)."""

    kind: Literal["elmo"] = "elmo"
    num_layers: int = 2
    """Number of layers in each direction."""
    hidden_size: int = 1024
    projection_size: int = 256
    """Size of the lstm cell's projected output, and of a word's vector in each direction; 0: no
    projection, hidden_size, as with other cells.
    """
    residual: bool = True
    """Whether layers from the second on have residual connections."""
    cell_clip: float = 0.0
    """Clip cells to plus or minus this (as published: 3); 0: do not. Clipped layers have no fast
    kernel on CUDA.
    """
    projection_clip: float = 0.0
    """Clip projected outputs to plus or minus this (as published: 3); 0: do not."""
    character_cnn: CharacterCNNConfig = field(
        default_factory=lambda: CharacterCNNConfig(
            filters=(32, 32, 64, 128, 256, 512),
            activation="relu",
            num_highway=2,
            max_characters=50,
            padding="read",
        )
    )
    """The convolution over spellings."""
    shared_softmax: bool = True
    """Whether both directions share one output layer."""
    head: HeadConfig = field(default_factory=FullConfig, metadata={"table": HEADS})
    """The output layer."""
    vocab_size: int = 100_000
    """The most words to predict; rarer ones are predicted as unknown, but still read."""
    min_count: int = 2
    """Words seen less often than this are predicted as unknown."""
    dropout: float = 0.1
    """Dropout on the input of every layer, the output layer included."""
    dropout_words: float = 0.0
    """Share of word types whose whole vector is dropped for a batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "min_count"):
            at_least(f"model.{name}", getattr(self, name), 1)
        for name in ("cell_clip", "projection_clip"):
            at_least(f"model.{name}", getattr(self, name), 0)
        self.check_cell("model")
        check_reads(self, "model", "cell", {"lstm": CLIPS})
        if not self.projection_size:
            refuse_unread(self, "model", ["projection_clip"], "projection_size to 1 or more")

    @property
    def output_size(self) -> int:
        return super().output_size if self.cell == "lstm" else self.hidden_size

    def build(self, num_targets: int = 0, *, counts_V: Tensor | None = None) -> BidirectionalLM:
        """Build a new model that predicts `num_targets` words; 0: without output layers."""
        return BidirectionalLM(self, num_targets, counts_V=counts_V)


class BidirectionalLM(nn.Module):
    def __init__(
        self,
        config: ElmoConfig,
        num_targets: int = 0,
        *,
        counts_V: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.input = CharacterCNN(config.character_cnn, 0, config.output_size)
        self.rightward = _layers(config, reverse=False)
        self.leftward = _layers(config, reverse=True)
        self.dropout = Dropout(config.dropout, locked=config.locked)
        self.num_targets = num_targets
        self.head: Head | None = None
        self.leftward_head: Head | None = None
        if num_targets:
            self.head = config.head.build(config.output_size, num_targets, counts_V=counts_V)
            if not config.shared_softmax:
                self.leftward_head = config.head.build(
                    config.output_size, num_targets, counts_V=counts_V
                )

    def initial_state(self, batch_size: int) -> State:
        """Zeros in every layer of both directions."""
        return State(
            {
                name: State(
                    {str(i): each.initial_state(batch_size) for i, each in _numbered(layers)}
                )
                for name, layers in (("forward", self.rightward), ("backward", self.leftward))
            }
        )

    def losses(
        self,
        characters_UC: Int[Tensor, "U C"],
        places_BX: Int[Tensor, "B X"],
        targets_BX: Int[Tensor, "B X"],
    ) -> tuple[Float[Tensor, "B Y"], Float[Tensor, "B Y"]]:
        """The losses of both directions for sentences of equal length, with marks around them.

        `characters_UC` are the spellings of word types (`spelled`), `places_BX` the row of each of
        the X words (marks included), `targets_BX` their ids. Forward losses are of all words but
        the first, backward ones of all but the last: minus log probabilities, unless the output
        layer samples in training.
        """
        assert self.head is not None, "a model without output layers predicts nothing"
        vectors_UE = self.input.spelled(characters_UC, characters_UC.shape[1])
        if self.training and self.config.dropout_words:
            vectors_UE = vectors_UE * drop_rows(vectors_UE, self.config.dropout_words)
        vectors_BXE = _look_up(places_BX, vectors_UE)
        right, _ = self._climb(self.rightward, vectors_BXE[:, :-1])
        left, _ = self._climb(self.leftward, vectors_BXE[:, 1:])
        left_head = self.leftward_head or self.head
        return (
            self.head.losses(self.dropout(right[-1]), targets_BX[:, 1:]),
            left_head.losses(self.dropout(left[-1]), targets_BX[:, :-1]),
        )

    def vectors(
        self,
        vectors_BXE: Float[Tensor, "B X E"],
        state: State | None = None,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "L B X D"], State]:
        """The vectors of all layers, forward and backward concatenated, and the new state. The
        lowest layer is the word's own vector, twice.
        """
        if state is None:
            state = self.initial_state(len(vectors_BXE))
        right, forward = self._climb(self.rightward, vectors_BXE, state.part("forward"), lengths_B)
        left, backward = self._climb(self.leftward, vectors_BXE, state.part("backward"), lengths_B)
        pairs = [(vectors_BXE, vectors_BXE), *zip(right, left, strict=True)]
        layers = [torch.cat(pair, dim=-1) for pair in pairs]
        return torch.stack(layers), State({"forward": forward, "backward": backward})

    def _climb(
        self,
        layers: nn.ModuleList,
        vectors_BXE: Tensor,
        state: State | None = None,
        lengths_B: Tensor | None = None,
    ) -> tuple[list[Tensor], State]:
        """Run one direction; return the output of every layer, and the new state."""
        outputs: list[Tensor] = []
        states = {}
        below = vectors_BXE
        for level, layer in _numbered(layers):
            entering = self.dropout(below)
            before = None if state is None else state.part(str(level))
            below, states[str(level)] = layer(entering, before, lengths_B)
            if level and self.config.residual:
                below = below + entering
            outputs.append(below)
        return outputs, State(states)


def spelled(words: Sequence[str], config: CharacterCNNConfig) -> Int[Tensor, "U C"]:
    """The table of spellings, no wider than the convolution needs."""
    spellings = [SYMBOLS.get(word, word) for word in words]
    table_UC = spelling_table(spellings, config.max_characters, config.alphabet)
    longest = int((table_UC != config.alphabet.padding).sum(1).max())
    return table_UC[:, : longest + len(config.filters)]


def _layers(config: ElmoConfig, reverse: bool) -> nn.ModuleList:
    clips = {name: getattr(config, name) for name in CLIPS} if config.cell == "lstm" else {}
    layers = nn.ModuleList(
        RecurrentLayer(
            make_cell(config, config.output_size, config.hidden_size, **clips),
            kernel=config.kernel,
            reverse=reverse,
        )
        for _ in range(config.num_layers)
    )
    tell_depths(layers)
    return layers


def _numbered(layers: nn.ModuleList) -> Iterator[tuple[int, RecurrentLayer]]:
    return enumerate(cast("list[RecurrentLayer]", layers))


def _look_up(places_BX: Tensor, vectors_UE: Tensor) -> Tensor:
    """The words' vectors, time-major in memory, as the recurrent kernels need them."""
    return F.embedding(places_BX.t(), vectors_UE).transpose(0, 1)


class ElmoEmbedder(Embedder):
    """A bidirectional language model as a source of word vectors.

    Layer 0 is the word's own vector, twice, as published; the others are forward and backward
    concatenated. In evaluation mode the vectors of word types are cached: call `forget` after
    changing the weights.
    """

    _rows: dict[str, int]
    """The row of each cached word type in `_cached_ME`."""
    _cached_ME: Tensor

    def __init__(self, model: BidirectionalLM) -> None:
        super().__init__()
        self.model = model
        self.num_layers = 1 + model.config.num_layers
        self.size = 2 * model.config.output_size
        self._lock = threading.Lock()  # a server reads in several threads
        self._clear(torch.device("cpu"))

    def read(
        self, sentences: Sentences, state: State | None = None
    ) -> tuple[Float[Tensor, "L B T D"], Int[Tensor, "B"], State]:
        """Read sentences between begin and end marks, whose vectors are left out."""
        lengths_B = torch.tensor([len(words) for words in sentences])
        types = {mark: place for place, mark in enumerate(MARKS)}
        places_BX = np.zeros((len(sentences), int(lengths_B.max()) + 2), np.int64)
        for row, words in enumerate(sentences):
            found = [types.setdefault(word, len(types)) for word in words]
            places_BX[row, : len(words) + 2] = [types[MARKS[0]], *found, types[MARKS[1]]]
        vectors_UE = self.word_vectors(list(types))
        vectors_BXE = _look_up(torch.from_numpy(places_BX).to(vectors_UE.device), vectors_UE)
        ragged = bool((lengths_B != lengths_B[0]).any())
        layers_LBXD, state = self.model.vectors(
            vectors_BXE, state, lengths_B + len(MARKS) if ragged else None
        )
        layers_LBTD = layers_LBXD[:, :, 1:-1]
        if ragged:
            time_T = torch.arange(layers_LBTD.shape[2])
            real_BT1 = (time_T < lengths_B.unsqueeze(1)).unsqueeze(2)
            layers_LBTD = torch.where(real_BT1.to(layers_LBTD.device), layers_LBTD, 0)
        return layers_LBTD, lengths_B, state

    def groups(self) -> list[list[nn.Parameter]]:
        """The convolution, then the layers of both directions level by level."""
        model = self.model
        groups = [list(model.input.parameters())]
        for right, left in zip(model.rightward, model.leftward, strict=True):
            groups.append([*right.parameters(), *left.parameters()])
        return groups

    def word_vectors(self, words: Sequence[str]) -> Float[Tensor, "U E"]:
        """The context-free vectors of word types, from their spelling."""
        parameters = list(self.model.input.parameters())
        learns = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        if self.training or learns:
            return self._spelled(words)
        device = parameters[0].device
        with self._lock, torch.no_grad(), torch.autocast(device.type, enabled=False):
            if self._cached_ME.device != device:
                self._clear(device)
            new = [word for word in words if word not in self._rows]
            if len(self._rows) + len(new) > MOST_CACHED:
                self._rows, new = {}, list(words)
            if new:
                self._cache(new, self._spelled(new))
            rows_U = torch.tensor([self._rows[word] for word in words])
            return self._cached_ME[rows_U.to(device)]

    def forget(self) -> None:
        with self._lock:
            self._clear(self._cached_ME.device)

    def _clear(self, device: torch.device) -> None:
        self._rows = {}
        self._cached_ME = torch.empty(0, self.model.config.output_size, device=device)

    def _cache(self, words: Sequence[str], vectors_UE: Tensor) -> None:
        before, after = len(self._rows), len(self._rows) + len(words)
        if after > len(self._cached_ME):
            room = max(after, 2 * len(self._cached_ME))
            wider_ME = vectors_UE.new_empty(room, vectors_UE.shape[1])
            wider_ME[:before] = self._cached_ME[:before]
            self._cached_ME = wider_ME
        self._cached_ME[before:after] = vectors_UE
        self._rows.update(zip(words, range(before, after), strict=True))

    def _spelled(self, words: Sequence[str]) -> Tensor:
        cnn = self.model.input
        parts = []
        for start in range(0, len(words), TYPES_AT_ONCE):
            characters_UC = spelled(words[start : start + TYPES_AT_ONCE], cnn.config)
            width = characters_UC.shape[1]
            parts.append(cnn.spelled(characters_UC.to(cnn.characters_VC.device), width))
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def embedder(model: BidirectionalLM, tokenizer: Any) -> ElmoEmbedder:
    """The word vectors of a model; spellings are read without the tokenizer."""
    return ElmoEmbedder(model)


def word_tables(model: BidirectionalLM, tokenizer: Any) -> dict[str, WordTable]:
    """The vectors of the words that were read in training, from their letters."""
    words = tokenizer.spellings()
    return {"words": (words, ElmoEmbedder(model).eval().word_vectors(words))}
