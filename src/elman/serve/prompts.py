"""Prompts of streams: waiting, and read in pieces before their streams join the batch.

Reading in pieces bounds how long a new prompt delays the other streams. Prompts are read together
without padding; streams with the same prompt share its reading, and prefixes that were read before
come from a cache.

B rows, T time steps, V vocabulary, K alternatives, N positions of all rows.
"""

from __future__ import annotations

from array import array
from collections import deque

import numpy as np
import torch
from torch import Tensor

from elman.decode.prefix import device_of, over_distributions, read
from elman.models.interface import LanguageModel
from elman.nn.state import State
from elman.serve.batch_rows import gathered
from elman.serve.prefixes import Place, Prefix, PrefixCache
from elman.serve.streams import Stream

READ_TOKENS = 512
"""Prompt tokens read per turn, which bounds the delay of running streams."""
READ_TOKENS_ON_A_GPU = 65_536
"""It reads these in less time than a CPU needs for the others."""
PIECE_LENGTH = 32
"""Tokens of each prompt read at once, rather than fewer tokens of more prompts: what a prompt costs
besides the network's arithmetic does not depend on their number."""
CACHE_STRIDE = 128
"""Cache the state at the end of a prompt and after every n-th token of it."""


def most_tokens(device: torch.device) -> int:
    """Prompt tokens to read in a turn."""
    return READ_TOKENS_ON_A_GPU if device.type == "cuda" else READ_TOKENS


class Prompt:
    """A prompt that is being read, all but its last token, which the first step reads."""

    def __init__(self, stream: Stream, boundary_id: int, state: State) -> None:
        wanted = stream.continuation
        self.streams = [stream]
        """All streams with this prompt."""
        self.prefix = Prefix((boundary_id, *wanted.prompt))
        self.state, self.row = state, 0
        """The state so far is this row of a state that many prompts share."""
        self.position = 0
        """Tokens that the state has read."""
        self.left = len(wanted.prompt)
        """Tokens still to read."""
        self.kind = wanted.score_prompt, wanted.score_prompt and wanted.num_alternatives > 0
        """Whether to score, and with alternatives; prompts of one kind are read together."""

    @property
    def key(self) -> tuple[object, ...]:
        """What readings share that another stream with the same prompt can join."""
        return *self.kind, self.prefix.tokens.tobytes()

    def advance(self, number: int, state: State, row: int) -> None:
        """Note that `number` more tokens were read."""
        self.position += number
        self.left -= number
        self.state, self.row = state, row

    @property
    def is_reported(self) -> bool:
        """Whether the first scores have been reported, so that no other stream can share them."""
        return self.kind[0] and self.position > 0


class Prompts:
    """The prompts of one model's streams that wait or are being read."""

    def __init__(
        self, model: LanguageModel, *, boundary_id: int, initial: State, cache: PrefixCache
    ) -> None:
        """`initial` is the state of the empty prefix, for one stream."""
        self.waiting: deque[Stream] = deque()
        self.reading: list[Prompt] = []
        self._model = model
        self._boundary_id = boundary_id
        self._initial = initial
        self._cache = cache
        self.device = device_of(initial)

    @property
    def num_reading(self) -> int:
        """Streams whose prompt is being read."""
        return sum(len(prompt.streams) for prompt in self.reading)

    def streams(self) -> list[Stream]:
        """All of them, those that wait first."""
        return [*self.waiting, *(stream for prompt in self.reading for stream in prompt.streams)]

    def clear(self) -> None:
        self.waiting.clear()
        self.reading.clear()

    def drop_cancelled(self) -> None:
        self.waiting = deque(stream for stream in self.waiting if not stream.cancelled)
        for prompt in self.reading:
            prompt.streams = [stream for stream in prompt.streams if not stream.cancelled]
        self.reading = [prompt for prompt in self.reading if prompt.streams]

    def drop_read(self) -> None:
        """Drop prompts that are read; their streams are elsewhere by now."""
        self.reading = [prompt for prompt in self.reading if prompt.left]

    def admit(self, room: int) -> None:
        """Start reading prompts that wait, of `room` streams; streams whose prompt is being read
        already share it."""
        if not self.waiting or room <= 0:
            return
        begun = {prompt.key: prompt for prompt in reversed(self.reading) if not prompt.is_reported}
        found: list[tuple[Prompt, int, Place]] = []
        while self.waiting and room > 0:
            room -= 1
            stream = self.waiting.popleft()
            prompt = Prompt(stream, self._boundary_id, self._initial)
            same = begun.setdefault(prompt.key, prompt)
            if same is not prompt:
                stream.num_cached = max(0, same.position - 1)
                same.streams.append(stream)
                continue
            if not stream.continuation.score_prompt:
                number, place = self._cache.find(prompt.prefix, prompt.left)
                if place is not None:
                    found.append((prompt, number, place))
                    stream.num_cached = number - 1
                    prompt.position = number  # for streams that join
            self.reading.append(prompt)
        if found:
            state = self._cache.states([place for _, _, place in found])
            for i, (prompt, number, _) in enumerate(found):
                prompt.position = 0
                prompt.advance(number, state, i)

    def read_piece(self, budget: int) -> tuple[list[Prompt], int]:
        """Read a piece of some prompts, of at most `budget` tokens; return these prompts and the
        number of tokens."""
        rows, length = self._next_piece(budget)
        tokens_BT = self._piece(rows, 0, length)
        state = gathered(rows)
        if rows[0].streams[0].continuation.score_prompt:
            state = self._score(rows, tokens_BT, length, state)
        else:
            state = read(self._model, tokens_BT, state)
        for i, row in enumerate(rows):
            row.advance(length, state, i)
        self._cache.put_all(
            (
                (row.prefix, row.position, row.row)
                for row in rows
                if row.left == 0 or row.position % CACHE_STRIDE == 0
            ),
            state,
        )
        return rows, length * len(rows)

    def _next_piece(self, budget: int) -> tuple[list[Prompt], int]:
        """Prompts to read together, the first one among them, and how many tokens of each."""
        first = self.reading[0]
        length = min(first.left, CACHE_STRIDE - first.position % CACHE_STRIDE, budget)
        rows: list[Prompt] = []
        for row in self.reading:
            if row.kind == first.kind:
                shortest = min(length, row.left)
                if rows and (len(rows) + 1) * min(shortest, PIECE_LENGTH) > budget:
                    break
                rows.append(row)
                length = shortest
        return rows, min(length, budget // len(rows))

    def _score(self, rows: list[Prompt], tokens_BT: Tensor, length: int, state: State) -> State:
        """Read a piece of prompts, and report the log probabilities of its tokens."""
        targets_BT = self._piece(rows, 1, length)
        k = max(stream.continuation.num_alternatives for row in rows for stream in row.streams)
        if k == 0:
            logprobs_BT, state = self._model.logprobs(tokens_BT, targets_BT, state)
            for row, logprobs in zip(rows, logprobs_BT.tolist(), strict=True):
                for stream in row.streams:
                    stream.prompt_logprobs += logprobs
            return state

        def summarise(logprobs_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            chosen_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
            values_NK, tokens_NK = logprobs_NV.topk(min(k, logprobs_NV.shape[-1]), dim=-1)
            return chosen_N, values_NK, tokens_NK

        summary, state = over_distributions(self._model, tokens_BT, targets_BT, state, summarise)
        for row, chosen, values, tokens in zip(rows, *(x.tolist() for x in summary), strict=True):
            for stream in row.streams:
                stream.prompt_logprobs += chosen
                stream.prompt_alternatives += [
                    tuple(zip(some, their, strict=True))[: stream.continuation.num_alternatives]
                    for some, their in zip(tokens, values, strict=True)
                ]
        return state

    def _piece(self, rows: list[Prompt], offset: int, length: int) -> Tensor:
        """(B, T) tokens of prompts, from `offset` after those that were read."""
        tokens = array("q")
        for row in rows:
            first = row.position + offset
            tokens += row.prefix.tokens[first : first + length]
        return torch.from_numpy(np.array(tokens, np.int64)).to(self.device).view(len(rows), length)
