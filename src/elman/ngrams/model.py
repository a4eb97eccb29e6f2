"""What back-off models of every layout have in common: the questions that they answer.

    plain     `backoff`    32-bit numbers and links between entries: the fastest
    compact   `compact`    packed bits without links, optionally quantised: the smallest

A context is what the compiled loops of a layout remember of the tokens read: see there.

B batch, C and T tokens, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError, UsageError
from elman.base.threads import default_threads, in_threads
from elman.ngrams.interpolation import Floats
from elman.ngrams.mapped import ArrayFile
from elman.ngrams.trie import MEMORY, Room
from elman.ngrams.walking import Ids, Nodes

if TYPE_CHECKING:
    from elman.ngrams.backoff import BackoffModel

# The lanes that a piece of work interleaves, where each gets this many tokens: with 64 lanes
# scoring took a tenth longer, with 32 a third.
_MOST_LANES, _LEAST_LANE = 128, 1 << 8
_LEAST_PIECE = 1 << 13


@dataclass(kw_only=True)
class NgramModel(ABC):
    """N-grams with log probabilities, contexts with back-off weights."""

    level_starts: list[int]
    """(order + 1,) index of the first n-gram of each length; the last item is their number."""
    boundary_id: int
    """The token that begins and ends lines."""
    about: dict[str, Any] = field(default_factory=dict)
    """How the model was made; `normalised` is False if its scores are not probabilities."""
    file: ArrayFile | None = field(default=None, repr=False, compare=False)
    """The file that has the arrays. The methods verify what they read of it; code that reads
    the arrays directly must call `check` first."""
    room: Room = field(default=MEMORY, repr=False, compare=False)
    """Keeps to a limit of memory while the arrays are read."""
    loops: ClassVar[Any]
    """The module of the layout's compiled loops."""

    @property
    @abstractmethod
    def layout(self) -> str:
        """The layout and its widths, in words."""

    @property
    @abstractmethod
    def unigrams(self) -> Floats:
        """(V,) the log probabilities of the single tokens, contiguous."""

    @abstractmethod
    def plain(self) -> BackoffModel:
        """Return the model in the plain layout, checked: the one that other formats are made of."""

    @abstractmethod
    def bytes_up_to(self, length: int) -> int:
        """Return the size of a model in this layout with n-grams of at most this length."""

    @abstractmethod
    def context_lengths(self, contexts_BC: Ids) -> Nodes:
        """(B,) length of the longest end of each context that something was seen after."""

    @abstractmethod
    def _arrays(self) -> tuple[Any, ...]:
        """Return the arguments that the loops begin with, before the marks."""

    @abstractmethod
    def _no_contexts(self, number: int) -> Nodes:
        """Return that many empty contexts."""

    @property
    def order(self) -> int:
        return len(self.level_starts) - 1

    @property
    def vocab_size(self) -> int:
        return self.level_starts[1]

    @property
    def num_ngrams(self) -> list[int]:
        """The number of n-grams of length 1, 2, ..."""
        return [end - start for start, end in pairwise(self.level_starts)]

    def growth(self) -> list[dict[str, Any]]:
        """Return, for each order, its number of n-grams and the size of a model up to it."""
        return [
            {"order": length, "ngrams": number, "bytes": self.bytes_up_to(length)}
            for length, number in enumerate(self.num_ngrams, start=1)
        ]

    def after(self, tokens_BC: Ids) -> Nodes:
        """(B, ...) the context after each row of tokens; -1 resets to the empty context."""
        check_ids(tokens_BC, self.vocab_size, least=-1)
        self.check_unchanged()
        nodes_B = self._no_contexts(len(tokens_BC))
        self._run(self.loops.walk, np.ascontiguousarray(tokens_BC, np.int64), nodes_B)
        return nodes_B

    def undefined(self, contexts_BC: Ids) -> NDArray[np.bool_] | None:
        """(B,) whether the estimate after each context is 0/0; None of a model that has none.

        That is so under maximum likelihood if nothing was seen after the last order - 1 tokens, or
        after those since the last boundary. The model then uses the longest shorter context.
        """
        if not self.can_be_undefined:
            return None
        contexts_BC = contexts_BC[:, max(0, contexts_BC.shape[1] - self.order + 1) :]
        lengths_B = self.context_lengths(contexts_BC)
        places = np.arange(contexts_BC.shape[1])
        # Before a boundary, and where there is no token, a context has nothing.
        begins = np.where(contexts_BC == self.boundary_id, places, 0)
        begins = np.maximum(begins, np.where(contexts_BC < 0, places + 1, 0))
        wanted_B = contexts_BC.shape[1] - begins.max(axis=1, initial=0)
        return np.asarray(lengths_B < wanted_B)

    @property
    def can_be_undefined(self) -> bool:
        return self.about.get("smoothing") == "maximum-likelihood" and self.order > 1

    def score_rows(self, tokens_BT: Ids, targets_BT: Ids, contexts_BC: Ids) -> Floats:
        """(B, T) log P(target | the row's context and tokens up to the same position)."""
        nodes_B = self.after(contexts_BC)
        tokens_BT = np.ascontiguousarray(tokens_BT, np.int64)
        targets_BT = np.ascontiguousarray(targets_BT, np.int64)
        check_ids(tokens_BT, self.vocab_size)
        check_ids(targets_BT, self.vocab_size)
        logprobs_BT = np.empty(tokens_BT.shape, np.float32)
        if not logprobs_BT.size:
            return logprobs_BT
        if np.array_equal(tokens_BT[:, 1:], targets_BT[:, :-1]):  # running text
            self._run(self.loops.walk, np.ascontiguousarray(tokens_BT[:, :1]), nodes_B)
            cuts = np.arange(len(targets_BT) + 1) * targets_BT.shape[1]
            lanes = targets_BT.ravel(), cuts, nodes_B, logprobs_BT.ravel()
            self._run(self.loops.score_lanes, *lanes)
        else:
            self._run(self.loops.score_rows, tokens_BT, targets_BT, nodes_B, logprobs_BT)
        return logprobs_BT

    def score(self, ids_T: Ids, num_threads: int | None = None) -> Floats:
        """(T,) the log probability of each token of a text that begins after a boundary."""
        logprobs_T = np.empty(len(ids_T), np.float32)

        def score(span: tuple[int, int]) -> None:
            check_ids(ids_T[slice(*span)], self.vocab_size)
            num_lanes = max(1, min(_MOST_LANES, (span[1] - span[0]) // _LEAST_LANE))
            cuts = np.linspace(*span, num_lanes + 1).astype(np.int64)
            places = cuts[:-1, None] + np.arange(-self.order, 0)
            # Signed, to hold -1: ids may be of an unsigned type.
            before = ids_T[np.maximum(places, 0)].astype(np.int64)
            before[places < 0] = -1
            before[places == -1] = self.boundary_id
            self._run(self.loops.score_lanes, ids_T, cuts, self.after(before), logprobs_T)
            self.room.relieve()

        num_threads = num_threads or default_threads()
        # Several pieces for each thread, so that all end at about the same time.
        share = len(ids_T) // (4 * num_threads if num_threads > 1 else 1)
        size = min(self.room.piece, max(share, _LEAST_PIECE))
        cuts = [*range(0, len(ids_T), size), len(ids_T)]
        in_threads(score, pairwise(cuts), num_threads)
        self.check_unchanged()  # a long text takes a while
        return logprobs_T

    def distributions(self, contexts_BC: Ids) -> Floats:
        """(B, V) log P(token | context) of every token."""
        nodes_B = self.after(contexts_BC)
        logprobs_BV = np.empty((len(nodes_B), self.vocab_size), np.float32)
        self._run(self.loops.distributions, nodes_B, self.unigrams, self.order, logprobs_BV)
        return logprobs_BV

    def check(self) -> None:
        """Raise an error if the file is damaged."""
        if self.file is not None:
            self.file.verify()

    def check_unchanged(self) -> None:
        """Raise an error if the model's file was written to since it was opened."""
        if self.file is not None:
            self.file.check_unchanged()

    def _run(self, loop: Callable[..., None], *arguments: Any) -> None:
        """Call one of `loops` on the model's arrays."""
        before = self._arrays()
        try:
            if self.file is None:
                loop(*before, None, *arguments)
            else:
                self.file.run(loop, before, arguments)
        except IndexError as error:
            raise not_a_trie() from error


def check_ids(ids: Ids, vocab_size: int, least: int = 0) -> None:
    """Raise an error for ids outside the vocabulary: compiled loops do not check them."""
    if ids.size and not least <= int(ids.min()) <= int(ids.max()) < vocab_size:
        wrong = int(ids.min()) if int(ids.min()) < least else int(ids.max())
        raise UsageError(
            f"token {wrong} is not in the model's vocabulary of {vocab_size}",
            "encode the text with the model's own tokenizer",
        )


def not_a_trie() -> ElmanError:
    return ElmanError(
        "the n-gram model is damaged: its entries do not form a trie",
        "restore its file from a copy, or train the model again",
    )
