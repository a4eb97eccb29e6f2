"""Hashed n-gram features (Mikolov and others, 2011): a maximum-entropy model in a fixed-size table.

A word's score after a context is the sum of one weight per order, all from one table:

    score(w) = sum over n of scale_n table[start_n + w],     start_n = hash(the last n - 1 words)

A context's weights for the whole vocabulary are a block of consecutive slots, so looking them up is
one contiguous read. Blocks of different contexts overlap. To avoid using the weight of another
n-gram, each slot has an owner: the first n-gram of a training target claims it, with a byte of its
context's hash (the tag). A slot that is free or owned by another n-gram counts as zero and is not
trained, so unseen contexts contribute nothing.

Slots hold the weight divided by `scale`, which sets how fast n-grams learn relative to the matrices
of a network; longer ones learn more slowly, so that they add what shorter ones cannot express.

Order 1 is the bias of the output layer that adds the scores up (`elman.nn.heads.softmax`).
`Contexts` turns tokens into hashed contexts; `HashedNgrams` is the table. `Found` is the
arithmetic, for a loss that computes its own gradient (`elman.nn.heads.cross_entropy`).

B batch, T time steps, C tokens before them, O orders above the first, N rows, V vocabulary, S
words, X slots of the table, M slots found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.nn.shapes import Float, Int

NOTHING = -1
"""Stands before the first token."""

MULTIPLIER = 0x2545F4914F6CDD1D
"""An odd number whose products spread over all 64 bits (from Vigna's xorshift*)."""

START_BITS = 40
"""A hashed context is one number: the start of its block in these bits, its tag above them."""

MOST_ORDERS = 64
"""Maximum order: the factor of longer n-grams rounds to nothing beside those of shorter ones."""

INDICES = 1 << 24
"""Maximum number of slots addressed individually at once, at 8 bytes each."""


def scale(place: int) -> float:
    """Return the factor for slots of n-grams of length `place` + 2."""
    return 4.0 * 0.5**place


class Contexts:
    """Hash the contexts of a text, one for each of the orders 2 to `order`."""

    def __init__(self, order: int, num_slots: int, vocab_size: int) -> None:
        if num_slots < vocab_size:
            raise UsageError(
                f"a table of {num_slots:,} slots is too small for {vocab_size:,} words",
                "raise the size of the table: model.maxent_size, or model.size",
            )
        if order > MOST_ORDERS:
            raise UsageError(
                f"n-grams of length {order:,} are too long", f"use {MOST_ORDERS} at most"
            )
        self.order = order
        self.num_starts = num_slots - vocab_size + 1

    def initial(self, batch_size: int, device: torch.device) -> Int[Tensor, "B C"]:
        """Return the tokens before the first one: `NOTHING`, `order` - 2 times."""
        return torch.full((batch_size, self.order - 2), NOTHING, device=device)

    def read(
        self, tokens_BT: Int[Tensor, "B T"], before_BC: Int[Tensor, "B C"]
    ) -> tuple[Int[Tensor, "B T O"], Int[Tensor, "B C"]]:
        """Return the contexts after each token, and the last tokens, to continue from."""
        num_steps = tokens_BT.shape[1]
        seen = torch.cat([before_BC, tokens_BT], dim=1)
        hashes = torch.zeros_like(tokens_BT)
        contexts = []
        for back in range(self.order - 1):  # each order reads one word further back
            first = self.order - 2 - back
            hashes = (hashes + seen[:, first : first + num_steps] + 2) * MULTIPLIER
            hashes = hashes ^ (hashes >> 29)
            tags = (hashes >> 32) % 255 + 1
            contexts.append((tags << START_BITS) | (hashes % self.num_starts))
        return torch.stack(contexts, dim=2), seen[:, num_steps:]


class HashedNgrams(nn.Module):
    """The table: weights, and the owner of each slot."""

    owners: Tensor

    def __init__(self, num_slots: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_slots))
        # The tag of the context of each slot's n-gram; 0 if the slot is free.
        self.register_buffer("owners", torch.zeros(num_slots, dtype=torch.uint8))

    @torch.no_grad()
    def claim(self, contexts_NO: Int[Tensor, "N O"], targets_N: Int[Tensor, "N"]) -> None:
        """Give free slots to the n-grams of these targets."""
        starts_NO, tags_NO = unpack(contexts_NO)
        slots = (starts_NO + targets_N.unsqueeze(1)).flatten()
        wanted = tags_NO.flatten().where(self.owners[slots] == 0, 0)
        # If several want a slot at once, the highest tag gets it: the same on every device.
        self.owners.scatter_reduce_(0, slots, wanted, "amax")

    def scores(
        self, contexts_NO: Int[Tensor, "N O"], words_NS: Int[Tensor, "N S"]
    ) -> Float[Tensor, "N S"]:
        """Score each row's own words."""
        found: Tensor = _Scores.apply(self.weight, self.owners, contexts_NO, words_NS)  # type: ignore[no-untyped-call]
        return found

    def scores_of_all(
        self, contexts_NO: Int[Tensor, "N O"], vocab_size: int
    ) -> Float[Tensor, "N V"]:
        """Score all words."""
        found: Tensor = _ScoresOfAll.apply(self.weight, self.owners, contexts_NO, vocab_size)  # type: ignore[no-untyped-call]
        return found


def unpack(contexts_NO: Int[Tensor, "N O"]) -> tuple[Int[Tensor, "N O"], Tensor]:
    """Return the starts of the contexts' blocks, and their tags as bytes."""
    starts_NO = contexts_NO & ((1 << START_BITS) - 1)
    return starts_NO, (contexts_NO >> START_BITS).to(torch.uint8)


class Found:
    """The slots that the contexts of some rows own, for all words."""

    def __init__(self, owners_X: Tensor, contexts_NO: Tensor, vocab_size: int) -> None:
        self.owners_X, self.contexts_NO, self.vocab_size = owners_X, contexts_NO, vocab_size
        if owners_X.device.type == "cpu":
            self.by_order = _search(owners_X, contexts_NO, vocab_size)

    def add_scores(self, scores_NV: Tensor, table_X: Tensor) -> None:
        """Add the weights of each row's n-grams to its scores, in place."""
        if table_X.device.type == "cpu":
            for order, (places_M, slots_M) in enumerate(self.by_order):
                weights_M = table_X.index_select(0, slots_M)
                scores_NV.view(-1).index_add_(0, places_M, weights_M, alpha=scale(order))
            return
        for rows, order, slots_nV, owned_nV in self._blocks():
            scores_NV[rows] += scale(order) * table_X[slots_nV].where(owned_nV, 0)

    def add_slopes(self, to_table_X: Tensor, gradient_NV: Tensor) -> None:
        """Add each row's gradient to the slots of its n-grams, in place."""
        if to_table_X.device.type == "cpu":
            for order, (places_M, slots_M) in enumerate(self.by_order):
                slopes_M = gradient_NV.reshape(-1).index_select(0, places_M)
                to_table_X.index_add_(0, slots_M, slopes_M, alpha=scale(order))
            return
        for rows, order, slots_nV, owned_nV in self._blocks():
            slopes = gradient_NV[rows].where(owned_nV, 0).to(to_table_X.dtype)
            to_table_X.index_add_(0, slots_nV.flatten(), slopes.flatten(), alpha=scale(order))

    def _blocks(self) -> Iterator[tuple[slice, int, Tensor, Tensor]]:
        """Yield rows, an order, the slots of their blocks, and which of them they own.

        For a GPU: reads more than necessary, but never makes the host wait.
        """
        starts_NO, tags_NO = unpack(self.contexts_NO)
        words_V = torch.arange(self.vocab_size, device=starts_NO.device)
        size = max(1, INDICES // self.vocab_size)
        for first in range(0, len(starts_NO), size):
            rows = slice(first, first + size)
            for order in range(starts_NO.shape[1]):
                slots_nV = starts_NO[rows, order, None] + words_V
                yield rows, order, slots_nV, self.owners_X[slots_nV] == tags_NO[rows, order, None]


def _search(owners_X: Tensor, contexts_NO: Tensor, vocab_size: int) -> list[tuple[Tensor, Tensor]]:
    """For each order, list every slot that a row's context owns: its flat position in (N, V), and
    the slot.

    Block by block: comparing ten thousand bytes is faster than building their indices.
    """
    owners = owners_X.numpy()
    starts_NO, tags_NO = unpack(contexts_NO)
    found = []
    for starts, tags in zip(starts_NO.t().tolist(), tags_NO.t().tolist(), strict=True):
        places, slots = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for row, (start, tag) in enumerate(zip(starts, tags, strict=True)):
            words = np.flatnonzero(owners[start : start + vocab_size] == tag)
            places.append(words + row * vocab_size)
            slots.append(words + start)
        joined = np.concatenate(places), np.concatenate(slots)
        found.append((torch.from_numpy(joined[0]), torch.from_numpy(joined[1])))
    return found


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table_X: Tensor, owners_X: Tensor, contexts_NO: Tensor, words_NS: Tensor
    ) -> Tensor:
        starts_NO, tags_NO = unpack(contexts_NO)
        scores_NS = table_X.new_zeros(words_NS.shape)
        found = []
        for order in range(starts_NO.shape[1]):
            slots_NS = starts_NO[:, order, None] + words_NS
            owned_NS = owners_X[slots_NS] == tags_NO[:, order, None]
            (places_M,) = torch.nonzero(owned_NS.flatten(), as_tuple=True)
            slots_M = slots_NS.flatten()[places_M]
            scores_NS.view(-1).index_add_(0, places_M, table_X[slots_M], alpha=scale(order))
            found += [places_M, slots_M]
        ctx.save_for_backward(*found)
        ctx.num_slots, ctx.dtype = len(table_X), table_X.dtype
        return scores_NS

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_NS: Tensor) -> tuple[Tensor | None, ...]:
        # In the table's dtype, even under autocast.
        gradient_NS = gradient_NS.to(ctx.dtype)
        to_table_X = gradient_NS.new_zeros(ctx.num_slots)
        found = ctx.saved_tensors
        for order, (places_M, slots_M) in enumerate(zip(found[::2], found[1::2], strict=True)):
            slopes_M = gradient_NS.reshape(-1)[places_M]
            to_table_X.index_add_(0, slots_M, slopes_M, alpha=scale(order))
        return to_table_X, None, None, None


class _ScoresOfAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table_X: Tensor, owners_X: Tensor, contexts_NO: Tensor, vocab_size: int
    ) -> Tensor:
        ctx.found = Found(owners_X, contexts_NO, vocab_size)
        ctx.num_slots, ctx.dtype = len(table_X), table_X.dtype
        scores_NV = table_X.new_zeros(len(contexts_NO), vocab_size)
        ctx.found.add_scores(scores_NV, table_X)
        return scores_NV

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_NV: Tensor) -> tuple[Tensor | None, ...]:
        gradient_NV = gradient_NV.to(ctx.dtype)
        to_table_X = gradient_NV.new_zeros(ctx.num_slots)
        ctx.found.add_slopes(to_table_X, gradient_NV)
        return to_table_X, None, None, None
