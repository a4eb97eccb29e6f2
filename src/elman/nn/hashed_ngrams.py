"""Hashed n-gram features (Mikolov and others, 2011): a maximum-entropy model in a table of fixed
size.

A word's score after a context is the sum of one number per order, each found in one table:

    score(w) = sum over n of table[start_n + w],        start_n = hash(the last n - 1 words)

A context's numbers for the whole vocabulary are a block of consecutive slots, so that looking them
up is reading, not searching. Blocks of different contexts overlap where their hashes fall close:
that is what the fixed size costs. The order 1 is the bias of the output layer that adds the scores
up (`elman.nn.heads.softmax`).

`Contexts` turns tokens into starts of blocks; `scores` and `scores_of_all` look words up, with
gradients; `add_blocks` and `add_to_blocks` are their arithmetic, for a loss that computes its own
gradient (`elman.nn.heads.cross_entropy`).

B batch, T time steps, C tokens before them, O orders above the first, N rows, V vocabulary, S
words, X slots of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.nn.shapes import Float, Int

NOTHING = -1
"""What stands before the first token."""

MULTIPLIER = 0x2545F4914F6CDD1D
"""An odd number whose products spread over all 64 bits (Vigna's xorshift* has it)."""

INDICES = 1 << 24
"""How many slots are addressed one by one at once, which takes 8 bytes for each."""


class Contexts:
    """The hashed contexts of a text: a start of a block for each of the orders 2 to `order`."""

    def __init__(self, order: int, num_slots: int, vocab_size: int) -> None:
        if num_slots < vocab_size:
            raise UsageError(
                f"a table of {num_slots:,} slots has no room for {vocab_size:,} words",
                "raise model.maxent_size (model.size of a maxent model)",
            )
        self.order = order
        self.num_starts = num_slots - vocab_size + 1

    def initial(self, batch_size: int, device: torch.device) -> Int[Tensor, "B C"]:
        """What was read before the first token: nothing, `order` - 2 times."""
        return torch.full((batch_size, self.order - 2), NOTHING, device=device)

    def read(
        self, tokens_BT: Int[Tensor, "B T"], before_BC: Int[Tensor, "B C"]
    ) -> tuple[Int[Tensor, "B T O"], Int[Tensor, "B C"]]:
        """The starts of blocks after each token, and the last tokens, to go on from."""
        num_steps = tokens_BT.shape[1]
        seen = torch.cat([before_BC, tokens_BT], dim=1)
        hashes = torch.zeros_like(tokens_BT)
        starts = []
        for back in range(self.order - 1):  # a word further back with each order
            first = self.order - 2 - back
            hashes = (hashes + seen[:, first : first + num_steps] + 2) * MULTIPLIER
            hashes = hashes ^ (hashes >> 29)
            starts.append(hashes % self.num_starts)
        return torch.stack(starts, dim=2), seen[:, num_steps:]


def scores(
    table_X: Float[Tensor, "X"], contexts_NO: Int[Tensor, "N O"], words_NS: Int[Tensor, "N S"]
) -> Float[Tensor, "N S"]:
    """The scores of each row's own words."""
    result: Tensor = _Scores.apply(table_X, contexts_NO, words_NS)  # type: ignore[no-untyped-call]
    return result


def scores_of_all(
    table_X: Float[Tensor, "X"], contexts_NO: Int[Tensor, "N O"], vocab_size: int
) -> Float[Tensor, "N V"]:
    """The scores of all words."""
    result: Tensor = _ScoresOfAll.apply(table_X, contexts_NO, vocab_size)  # type: ignore[no-untyped-call]
    return result


def add_blocks(scores_NV: Tensor, table_X: Tensor, contexts_NO: Tensor) -> None:
    """Add to each row the blocks of its contexts, in place."""
    vocab_size = scores_NV.shape[1]
    if scores_NV.device.type == "cpu":
        # Whole blocks one by one: three times as quick as a gathering by index.
        for row_V, starts in zip(scores_NV.unbind(), contexts_NO.tolist(), strict=True):
            for start in starts:
                row_V.add_(table_X[start : start + vocab_size])
        return
    for rows, slots_nV in _slots(contexts_NO, vocab_size):
        scores_NV[rows] += table_X[slots_nV]


def add_to_blocks(to_table_X: Tensor, contexts_NO: Tensor, gradient_NV: Tensor) -> None:
    """Add each row's gradient to the blocks of its contexts, in place."""
    vocab_size = gradient_NV.shape[1]
    if gradient_NV.device.type == "cpu":
        for row_V, starts in zip(gradient_NV.unbind(), contexts_NO.tolist(), strict=True):
            for start in starts:
                to_table_X[start : start + vocab_size].add_(row_V)  # += would copy as well
        return
    for rows, slots_nV in _slots(contexts_NO, vocab_size):
        gradient = gradient_NV[rows].to(to_table_X.dtype)
        to_table_X.index_add_(0, slots_nV.flatten(), gradient.flatten())


def _slots(contexts_NO: Tensor, vocab_size: int) -> Iterator[tuple[slice, Tensor]]:
    """Rows and the slots of their blocks, order by order."""
    words_V = torch.arange(vocab_size, device=contexts_NO.device)
    size = max(1, INDICES // vocab_size)
    for first in range(0, len(contexts_NO), size):
        rows = slice(first, first + size)
        for starts_n in contexts_NO[rows].unbind(1):
            yield rows, starts_n.unsqueeze(1) + words_V


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_X: Tensor, contexts_NO: Tensor, words_NS: Tensor) -> Tensor:
        ctx.save_for_backward(contexts_NO, words_NS)
        ctx.num_slots = len(table_X)
        scores_NS = table_X.new_zeros(words_NS.shape)
        for starts_N in contexts_NO.unbind(1):
            slots = (starts_N.unsqueeze(1) + words_NS).flatten()
            scores_NS += table_X.index_select(0, slots).view_as(scores_NS)
        return scores_NS

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_NS: Tensor) -> tuple[Tensor | None, ...]:
        contexts_NO, words_NS = ctx.saved_tensors
        to_table_X = gradient_NS.new_zeros(ctx.num_slots)
        for starts_N in contexts_NO.unbind(1):
            slots = (starts_N.unsqueeze(1) + words_NS).flatten()
            to_table_X.index_add_(0, slots, gradient_NS.flatten())
        return to_table_X, None, None


class _ScoresOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_X: Tensor, contexts_NO: Tensor, vocab_size: int) -> Tensor:
        ctx.save_for_backward(contexts_NO)
        ctx.num_slots = len(table_X)
        scores_NV = table_X.new_zeros(len(contexts_NO), vocab_size)
        add_blocks(scores_NV, table_X, contexts_NO)
        return scores_NV

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_NV: Tensor) -> tuple[Tensor | None, ...]:
        (contexts_NO,) = ctx.saved_tensors
        to_table_X = gradient_NV.new_zeros(ctx.num_slots)
        add_to_blocks(to_table_X, contexts_NO, gradient_NV)
        return to_table_X, None, None
