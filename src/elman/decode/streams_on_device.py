"""Steps of many streams on a GPU: the draws too, and the host reads a few steps at once.

Everything that a step reads and writes is a tensor of fixed shape (`_Rows`): tokens, states,
options, random numbers, how many tokens each row may still make, and the tokens made. So the host
need not wait for a step before it asks for the next. A row that has made its last token, or drawn
an end token, keeps its token and state from then on; so do the rows that fill up a graph.

Each number of steps costs one copy to the device and one to the host. The steps are replayed from
CUDA graphs for 1, 2, 4, 8 ... rows, one launch each. Each option in use is a graph of its own, as
long as there is memory for it.

B rows, K steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.decode.processors import process
from elman.decode.rows import COLUMNS, RowSettings
from elman.decode.sample import pick
from elman.nn.graphed import Capture, Graphed, Step, copy_state
from elman.nn.state import State

MOST_STEPS = 8
"""Steps between two looks of the host."""
MOST_ROWS = 4096
"""Rows of the largest graph; more are computed normally."""
STEPS_BEFORE_CAPTURE = 16
"""Ordinary steps for each number of rows: a capture takes about as long."""


@dataclass(frozen=True, eq=False)
class Streams:
    """B streams between two steps."""

    tokens_B: Tensor
    """What each reads next."""
    state: State
    settings: RowSettings
    counts_BV: Tensor | None = None
    """How often each token was generated, if any option asks for it."""
    logprobs_BV: Tensor | None = None
    """After the last step; None before the first."""


@dataclass(frozen=True)
class Made:
    """The tokens of K steps. Those after a row's last one mean nothing."""

    tokens_KB: NDArray[np.int64]
    logprobs_KB: NDArray[np.float64]
    """Under the model's own distribution; NaN where no token was possible, which ends a row."""


@dataclass(eq=False)
class _Rows:
    """All that a step reads and writes."""

    streams: Streams
    """Overwritten by every step. The settings have no bias."""
    bias: Tensor | None
    """(1, V) or (B, V), to add to log probabilities."""
    given_SB: Tensor
    """How many tokens each row may make, then its random numbers for each step."""
    left_B: Tensor
    place: Tensor
    """(1,) steps since the host looked."""
    made_K2B: Tensor
    """Tokens and log probabilities."""
    step: Callable[[], None] = lambda: None


class StreamSteps(Graphed):
    """Makes tokens of many streams with `step`, replayed from graphs as soon as they are there.

    Streams are values, but the last result shares its tensors with the graph: it is overwritten
    when it is continued.
    """

    def __init__(
        self,
        step: Step,
        device: torch.device,
        *,
        vocab_size: int,
        end_ids: Collection[int] = frozenset(),
        capture: Capture | None = None,
    ) -> None:
        super().__init__("steps of decoding", device, capture)
        self._step = step
        self._device = device
        self._is_end_V = torch.zeros(vocab_size, dtype=torch.bool)
        self._is_end_V[sorted(end_ids)] = True
        self._is_end_V = self._is_end_V.to(device)
        self._rows: _Rows | None = None
        self._held: Streams | None = None
        """What `_rows` has."""

    def __call__(
        self, streams: Streams, left_B: NDArray[np.int64], draws_KB: NDArray[np.float64]
    ) -> tuple[Made, Streams]:
        """Make a token for every row of `draws_KB`, up to `left_B` in each stream."""
        num_steps, num_rows = draws_KB.shape
        self.num_calls += num_steps
        with self.capture.here():
            rows, is_replayed = self._rows_of(streams, num_steps)
            self.num_replayed += num_steps * is_replayed
            given_SB = np.ones((1 + num_steps, len(rows.left_B)))
            given_SB[0] = 0
            given_SB[0, :num_rows] = left_B
            given_SB[1:, :num_rows] = draws_KB
            rows.given_SB[: 1 + num_steps].copy_(torch.from_numpy(given_SB))
            rows.left_B.copy_(rows.given_SB[0])
            rows.place.zero_()
            for _ in range(num_steps):
                rows.step()
            made_K2B = rows.made_K2B[:num_steps].to("cpu", copy=True).numpy()[..., :num_rows]
        self._rows, self._held = rows, _first(rows.streams, num_rows, streams.settings)
        return Made(made_K2B[:, 0].astype(np.int64), made_K2B[:, 1]), self._held

    def release(self) -> None:
        super().release()
        self.let_go()

    def let_go(self) -> None:
        """Hold the last streams no longer; they can still be continued."""
        self._rows = self._held = None

    def _rows_of(self, streams: Streams, num_steps: int) -> tuple[_Rows, bool]:
        """Rows that have these streams, and whether their steps are replayed."""
        num_rows = len(streams.tokens_B)
        size = 1 << (num_rows - 1).bit_length()
        key = self._key(streams, size)
        if key in self.captured:
            rows: _Rows = self.captured[key]
            if streams is not self._held or rows is not self._rows:
                self._load(rows, streams)
            return rows, True
        num_bytes = self._num_bytes(streams, size)
        if self.problem is None and num_rows <= MOST_ROWS and self._has_room(num_bytes):
            self.seen[key] = self.seen.get(key, 0) + num_steps
            few = self.seen[key] <= STEPS_BEFORE_CAPTURE
            if not few and self._captures(key, lambda: self._capture(streams, size), num_bytes):
                return self._rows_of(streams, num_steps)
        if streams is self._held and self._rows is not None:
            return self._rows, False  # not a graph's: `release` lets go of those
        rows = self._new(streams, num_rows)
        rows.step = lambda: self.capture.run(lambda: self._advance(rows))
        return rows, False

    def _key(self, streams: Streams, size: int) -> Hashable:
        settings = streams.settings
        return (
            size,
            torch.is_autocast_enabled("cuda"),
            tuple(tensor.shape[1:] for tensor in streams.state.flatten().values()),
            tuple(name for name in COLUMNS if name in settings.columns),
            0 if not settings.most_k else 1 << (settings.most_k - 1).bit_length(),
            settings.num_greedy > 0,
            settings.all_greedy,
            settings.bias is not None,
            settings.shared_bias is not None,
        )

    def _num_bytes(self, streams: Streams, size: int) -> int:
        """Bytes that a graph of `size` rows keeps: states, and numbers for every word."""
        settings, tensors = streams.settings, streams.state.flatten().values()
        per_row = sum(tensor.numel() // len(tensor) * tensor.element_size() for tensor in tensors)
        num_tables = 1 + settings.has_penalties  # log probabilities and counts
        num_tables += settings.bias is not None and settings.shared_bias is None
        num_shared = settings.shared_bias is not None
        return size * per_row + 4 * len(self._is_end_V) * (size * num_tables + num_shared)

    def _capture(self, streams: Streams, size: int) -> _Rows:
        """Capture a step of `size` rows; raise RuntimeError if it is impossible."""
        rows = self._new(streams, size)
        # Steps so far had fewer rows: libraries choose, and compile, by shape. No row goes on here.
        self.capture.run(lambda: self._advance(rows))
        rows.step = self.capture.record(lambda: self._advance(rows))
        return rows

    def _new(self, streams: Streams, size: int) -> _Rows:
        """New tensors for `size` rows, with the streams in the first ones."""
        given, device = streams.settings, self._device
        some_B = torch.arange(size, device=device) % len(streams.tokens_B)
        settings = RowSettings(
            columns={name: column_B1[some_B] for name, column_B1 in given.columns.items()},
            bias=None,
            greedy_B=given.greedy_B[some_B],
            # All, none, or some: `process` and `pick` only ask which of them.
            num_greedy=size if given.all_greedy else min(given.num_greedy, 1),
            most_k=0 if not given.most_k else 1 << (given.most_k - 1).bit_length(),
        )
        vocab_size = len(self._is_end_V)
        counts_BV = None
        if settings.has_penalties:
            counts_BV = torch.zeros(size, vocab_size, device=device)
        bias = None
        if given.bias is not None:
            num_biases = size if given.shared_bias is None else 1
            bias = torch.zeros(num_biases, vocab_size, device=device)
        none_B = torch.zeros(size, dtype=torch.long, device=device)
        rows = _Rows(
            streams=Streams(
                tokens_B=streams.tokens_B[some_B],
                state=streams.state.select(some_B),
                settings=settings,
                counts_BV=counts_BV,
            ),
            bias=bias,
            given_SB=torch.zeros(1 + MOST_STEPS, size, dtype=torch.float64, device=device),
            left_B=none_B,
            place=none_B[:1].clone(),
            made_K2B=torch.zeros(MOST_STEPS, 2, size, dtype=torch.float64, device=device),
        )
        self._load(rows, streams)
        return rows

    def _load(self, rows: _Rows, streams: Streams) -> None:
        """Overwrite the first rows with these streams."""
        own, number = rows.streams, len(streams.tokens_B)
        own.tokens_B[:number].copy_(streams.tokens_B)
        copy_state(streams.state, own.state)
        own.settings.greedy_B[:number].copy_(streams.settings.greedy_B)
        for name, column_B1 in own.settings.columns.items():
            column_B1[:number].copy_(streams.settings.columns[name])
        if own.counts_BV is not None:
            if streams.counts_BV is None:
                own.counts_BV[:number].zero_()
            else:
                own.counts_BV[:number].copy_(streams.counts_BV)
        settings = streams.settings
        if rows.bias is not None and settings.bias is not None:
            shared = settings.shared_bias
            some = slice(None if shared is None else len(shared))  # those of the first row
            numbers, tokens, values = (entry[some] for entry in settings.bias)
            rows.bias.zero_().index_put_((numbers, tokens), values, accumulate=True)

    def _advance(self, rows: _Rows) -> None:
        """One step, in place: nothing in here may wait for the device."""
        own = rows.streams
        logprobs_BV, after = self._step(own.tokens_B, own.state)
        scores_BV = logprobs_BV.float()
        if rows.bias is not None:
            scores_BV = scores_BV + rows.bias
        scores_BV = process(scores_BV, own.settings, own.counts_BV)
        draws_B = rows.given_SB[1:].index_select(0, rows.place)[0]
        tokens_B, possible_B = pick(scores_BV, own.settings, draws_B)
        chosen_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0].double()
        chosen_B = chosen_B.where(possible_B, torch.nan)
        rows.made_K2B.index_copy_(
            0, rows.place, torch.stack([tokens_B.double(), chosen_B]).unsqueeze(0)
        )
        goes_B = rows.left_B > 0
        if own.counts_BV is not None:
            own.counts_BV.scatter_add_(1, tokens_B[:, None], goes_B[:, None].float())
        own.tokens_B.copy_(tokens_B.where(goes_B, own.tokens_B))
        before = own.state.flatten()
        for name, tensor in after.flatten().items():
            if tensor is not before[name]:
                some = goes_B.view(-1, *[1] * (tensor.dim() - 1))
                before[name].copy_(tensor.where(some, before[name]))
        ends_B = self._is_end_V[tokens_B] | chosen_B.isnan()
        rows.left_B.copy_((rows.left_B - 1).clamp(min=0).masked_fill(ends_B, 0))
        rows.place.add_(1)
        rows.streams = replace(own, logprobs_BV=logprobs_BV)


def _first(streams: Streams, num_rows: int, settings: RowSettings) -> Streams:
    """The first rows, whose own settings are these."""

    def first(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[:num_rows]

    return Streams(
        tokens_B=streams.tokens_B[:num_rows],
        state=streams.state.map(lambda tensor: tensor[:num_rows]),
        settings=settings,
        counts_BV=first(streams.counts_BV),
        logprobs_BV=first(streams.logprobs_BV),
    )
