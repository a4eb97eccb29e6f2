"""Looking up embeddings with dropout, and their gradient as the rows of the words that occur.

Dropped words, dropped inputs and the sum over the tokens of a word are one pass each way, on one
thread: torch takes an operation for each of them, which wakes all threads for a few microseconds
of work.

T time steps, B batch, E numbers of an embedding, V vocabulary, N tokens, R different ones.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.nn.kernels import mkl
from elman.nn.kernels.loops import F32
from elman.nn.kernels.team import Floats2, Int64s, pooled_loop, view
from elman.nn.shapes import Float, Int

with warnings.catch_warnings():
    # torch 2.11 and 2.12 warn once in a process, whatever `check_invariants` says: it is over here.
    warnings.simplefilter("ignore")
    torch.sparse_coo_tensor(
        torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (1, 1), check_invariants=False
    )


def serves(weight_VE: Tensor) -> bool:
    """Whether the loops can look up these: float32 on a CPU, contiguous."""
    return (
        weight_VE.device.type == "cpu"
        and weight_VE.dtype == torch.float32
        and weight_VE.is_contiguous()
        and mkl.available()
    )


def looked_up(
    weight_VE: Float[Tensor, "V E"],
    tokens_TB: Int[Tensor, "T B"],
    kept_V1: Float[Tensor, "V 1"] | None,
    mask_B1E: Float[Tensor, "B 1 E"] | None,
) -> Float[Tensor, "T B E"]:
    """The vectors of tokens, times what is `kept` of each word, times the mask of their text; their
    gradient is sparse."""
    absent = weight_VE.new_empty(0)
    kept_V1 = absent.view(0, 1) if kept_V1 is None else kept_V1
    mask_B1E = absent.view(0, 1, 1) if mask_B1E is None else mask_B1E
    found: Tensor = _LookUp.apply(weight_VE, tokens_TB, kept_V1, mask_B1E[:, 0])  # type: ignore[no-untyped-call]
    return found


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight_VE: Tensor, tokens_TB: Tensor, kept_V1: Tensor, mask_BE: Tensor
    ) -> Tensor:
        tokens_N, width = tokens_TB.reshape(-1), weight_VE.shape[1]
        # Negative ones are the largest without a sign.
        if len(tokens_N) and tokens_N.numpy().view(np.uint64).max() >= len(weight_VE):
            raise IndexError("index out of range in self")  # as F.embedding
        vectors_NE = weight_VE.new_empty(len(tokens_N), width)
        _look_up(
            num_rows=1,
            num_parts=1,
            weight_VE=weight_VE,
            tokens_N=tokens_N,
            kept_V1=kept_V1,
            mask_BE=mask_BE,
            vectors_NE=vectors_NE,
        )
        ctx.save_for_backward(tokens_N, kept_V1, mask_BE)
        ctx.num_rows = len(weight_VE)
        return vectors_NE.view(*tokens_TB.shape, width)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, to_vectors: Tensor) -> tuple[Tensor | None, ...]:
        tokens_N, kept_V1, mask_BE = ctx.saved_tensors
        values_NE = to_vectors.contiguous().view(len(tokens_N), -1)
        return merged(tokens_N, values_NE, ctx.num_rows, kept_V1, mask_BE), None, None, None


def merge_rows(gradient_VE: Tensor) -> Tensor:
    """The sparse gradient of an embedding with one row for each word, in rising order; repeated
    ones are added in the order of the tokens, as in a dense gradient."""
    tokens_N, values_NE = gradient_VE._indices()[0], gradient_VE._values()
    found = tokens_N.numpy()
    if gradient_VE.is_coalesced() or (found[1:] > found[:-1]).all():
        return gradient_VE._coalesced_(True)  # which autograd does not take along
    absent = values_NE.new_empty(0, 1)
    rows = tokens_N.contiguous(), values_NE.contiguous(), len(gradient_VE)
    return merged(*rows, absent, absent)


def merged(
    tokens_N: Tensor, values_NE: Tensor, num_rows: int, kept_V1: Tensor, mask_BE: Tensor
) -> Tensor:
    """Rows for the words among the tokens, in rising order, as a sparse tensor of `num_rows`: the
    sums of the words' values, times what is kept of the word and the mask of their text. Of what is
    empty, all is kept."""
    rows_N, merged_NE = torch.empty_like(tokens_N), torch.empty_like(values_NE)
    count = torch.zeros(1, dtype=torch.int64)
    _merge(
        num_rows=1,
        num_parts=1,
        tokens_N=tokens_N,
        values_NE=values_NE,
        kept_V1=kept_V1,
        mask_BE=mask_BE,
        seen=torch.zeros(num_rows // 8 + 1, dtype=torch.int64),
        places_V=tokens_N.new_empty(num_rows),
        rows_N=rows_N,
        merged_NE=merged_NE,
        count=count,
    )
    found = rows_N[: int(count)].unsqueeze(0), merged_NE[: int(count)]
    return torch.sparse_coo_tensor(
        *found, (num_rows, values_NE.shape[1]), is_coalesced=True, check_invariants=False
    )


@pooled_loop
def _look_up(
    weight_VE: Floats2, tokens_N: Int64s, kept_V1: Floats2, mask_BE: Floats2, vectors_NE: Floats2
) -> None:
    batch_size = len(mask_BE)
    for n in range(len(tokens_N)):
        token, vector = tokens_N[n], vectors_NE[n]
        row = weight_VE[token]
        kept = kept_V1[token, 0] if len(kept_V1) else F32(1.0)
        if batch_size:
            mask = mask_BE[n % batch_size]
            for k in range(len(vector)):
                vector[k] = row[k] * kept * mask[k]
        else:
            for k in range(len(vector)):
                vector[k] = row[k] * kept


@pooled_loop
def _merge(
    tokens_N: Int64s,
    values_NE: Floats2,
    kept_V1: Floats2,
    mask_BE: Floats2,
    seen: Int64s,
    places_V: Int64s,
    rows_N: Int64s,
    merged_NE: Floats2,
    count: Int64s,
) -> None:
    """`seen` has a byte for each word, zero at first."""
    of_word = view(seen.ctypes.data, (8 * len(seen),), np.uint8)
    for token in tokens_N:
        of_word[token] = 1
    num_found = 0
    for eight in range(len(seen)):
        if seen[eight] == 0:
            continue
        for row in range(8 * eight, 8 * eight + 8):
            if of_word[row]:
                places_V[row] = num_found
                rows_N[num_found] = row
                num_found += 1
    merged_NE[:num_found] = F32(0.0)
    batch_size = len(mask_BE)
    for n in range(len(tokens_N)):
        token, added = tokens_N[n], values_NE[n]
        total = merged_NE[places_V[token]]
        kept = kept_V1[token, 0] if len(kept_V1) else F32(1.0)
        if batch_size:
            mask = mask_BE[n % batch_size]
            for k in range(len(added)):
                total[k] += added[k] * mask[k] * kept
        else:
            for k in range(len(added)):
                total[k] += added[k] * kept
    count[0] = num_found
