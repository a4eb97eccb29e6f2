"""Read prompts into states.

B batch, T time steps, V vocabulary, H hidden, N positions of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.models.interface import LanguageModel, is_neural, reading
from elman.nn.state import State

CHUNK_LENGTH = 512
"""Steps read in one pass: long enough to be fast, short enough to bound memory."""
DISTRIBUTION_SIZE = 1 << 22
"""Largest block of full distributions, in numbers (16 MB of float32)."""


def device_of(state: State) -> torch.device:
    """The device of the model that made `state`."""
    tensors = state.flatten().values()
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def read(model: LanguageModel, tokens_BT: Tensor, state: State) -> State:
    """Return the state after T more tokens.

    A network skips its output layer, most of the work with a large vocabulary. Other models compute
    the tokens' log probabilities, which are dropped.
    """
    for tokens_BC in torch.split(tokens_BT, CHUNK_LENGTH, dim=1):
        if is_neural(model):
            _, state = model.hidden(tokens_BC, state)
        else:
            _, state = model.logprobs(tokens_BC, tokens_BC, state)
    return state


def over_distributions(
    model: LanguageModel,
    tokens_BT: Tensor,
    targets_BT: Tensor,
    state: State,
    summarise: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> tuple[list[Tensor], State]:
    """Read T tokens; return summaries of the distribution after each, and the state.

    `summarise` takes `logprobs_NV` and `targets_N` for a block of positions and returns tensors
    with a first axis of N, which are returned as (B, T, ...). Only one block of full distributions
    is in memory at a time.
    """
    parts: list[tuple[Tensor, ...]] = []
    if is_neural(model):
        hidden, state = model.hidden(tokens_BT, state)
        hidden_NH, targets_N = hidden.dropped_BTH.flatten(0, 1), targets_BT.flatten()
        contexts_NO = None if hidden.contexts_BTO is None else hidden.contexts_BTO.flatten(0, 1)
        size = max(1, DISTRIBUTION_SIZE // model.vocab_size)
        for first in range(0, len(hidden_NH), size):
            rows = slice(first, first + size)
            some_NO = None if contexts_NO is None else contexts_NO[rows]
            logprobs_NV = model.head.logprobs_all(hidden_NH[rows], some_NO)
            parts.append(summarise(logprobs_NV, targets_N[rows]))
        shape = targets_BT.shape
        joined = [torch.cat(part) for part in zip(*parts, strict=True)]
        return [part.reshape(*shape, *part.shape[1:]) for part in joined], state
    for tokens_B, targets_B in zip(tokens_BT.unbind(1), targets_BT.unbind(1), strict=True):
        logprobs_BV, state = model.step(tokens_B, state)
        parts.append(summarise(logprobs_BV, targets_B))
    return [torch.stack(part, dim=1) for part in zip(*parts, strict=True)], state


def prefill(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    boundary_id: int,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """Read prompts of any lengths, each after the boundary token; return the `logprobs_BV` of the
    next token, and the states.

    `state`, one row per prompt, is what a conditional model was given; None: the initial state.

    No padding is read: all rows are read up to the end of the shortest, the remaining ones to the
    end of the next, and so on. The passes add up to the length of the longest prompt.
    """
    sequences = [[boundary_id, *prompt] for prompt in prompts]
    for token in (token for sequence in sequences for token in sequence):
        if not 0 <= token < model.vocab_size:
            raise UsageError(
                f"token {token} is not in the model's vocabulary of {model.vocab_size}",
                "encode the prompt with the model's own tokenizer",
            )
    with reading(model):
        if state is None:
            state = model.initial_state(len(sequences))
        device = device_of(state)
        # The last token of each row is read in one step of the whole batch.
        lengths = [len(sequence) - 1 for sequence in sequences]
        rows = list(range(len(sequences)))
        finished: list[tuple[list[int], State]] = []
        start = 0
        for end in sorted(set(lengths)):
            if end > start:
                tokens_BT = torch.tensor([sequences[row][start:end] for row in rows], device=device)
                state = read(model, tokens_BT, state)
            done = [i for i, row in enumerate(rows) if lengths[row] == end]
            finished.append(([rows[i] for i in done], state.select(done)))
            left = [i for i, row in enumerate(rows) if lengths[row] > end]
            rows, state, start = [rows[i] for i in left], state.select(left), end
        read_rows = [row for some, _ in finished for row in some]
        order = sorted(range(len(read_rows)), key=read_rows.__getitem__)
        state = State.cat([some for _, some in finished]).select(order)
        last_B = torch.tensor([sequence[-1] for sequence in sequences], device=device)
        return model.step(last_B, state)
