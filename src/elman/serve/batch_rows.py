"""The rows of a batch: a stream in each, with its part of the model's state.

Rows join and leave together with all that belongs to them: the state, the token to read next, the
counts of penalties, the settings of decoding, and on a GPU the random numbers.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.decode.options import DecodeOptions
from elman.decode.prefix import device_of
from elman.decode.random_numbers import Numbers
from elman.decode.rows import RowSettings
from elman.decode.streams_on_device import Streams
from elman.nn.state import State
from elman.serve.streams import Stream


@dataclass
class Row:
    """A stream that is not in the batch now, with all that it comes with."""

    stream: Stream
    state: State
    row: int
    """Of the state."""
    last: int
    """The token to read next."""
    counts_1V: Tensor | None = None


class BatchRows:
    """Streams that make their tokens together."""

    def __init__(self, initial: State, *, vocab_size: int, on_device: bool) -> None:
        """`initial` is the state of the empty prefix; `on_device` says whether tokens are chosen
        there, from random numbers that come with the rows."""
        self.device = device_of(initial)
        self._vocab_size = vocab_size
        self._on_device = on_device
        self._no_state = initial.select([])
        self._no_tokens = torch.empty(0, dtype=torch.long, device=self.device)
        self.clear()

    def clear(self) -> None:
        """Drop all rows, whatever they are."""
        self.streams: list[Stream] = []
        self.state, self.tokens_B = self._no_state, self._no_tokens
        self._settings: RowSettings | None = None
        """None if rows have changed since."""
        self.counts_BV: Tensor | None = None
        self.made: Streams | None = None
        """The batch as the device left it; None if rows have changed since."""
        self.numbers = Numbers()
        self.left_B = np.empty(0, np.int64)
        """Tokens that each stream may make before it ends or pauses."""
        self._read_rows: list[int] = []
        """Streams that pause if they are not read."""

    def join(self, rows: Sequence[Row]) -> None:
        """Add rows: all of them, or none if it fails, as without memory. The caller drops them
        elsewhere afterwards, so that it finds them if it fails."""
        if not rows:
            return
        counts_BV = self.counts_BV
        counts = [row.counts_1V for row in rows]
        known = next((one for one in (counts_BV, *counts) if one is not None), None)
        if known is not None:
            before = known.new_zeros(len(self.streams), self._vocab_size)
            nothing = known.new_zeros(1, self._vocab_size)
            counts_BV = torch.cat(
                [
                    before if counts_BV is None else counts_BV,
                    *(nothing if one is None else one for one in counts),
                ]
            )
        state = gathered(rows)
        if self.streams:
            state = State.cat([self.state, state])
        last_B = torch.tensor([row.last for row in rows], device=self.device)
        tokens_B = torch.cat([self.tokens_B, last_B])
        streams, left_B, settings = [row.stream for row in rows], self.left_B, None
        if self._on_device:
            left_B = np.concatenate([left_B, _left(streams)])
            if self._settings is not None:
                settings = self._settings.join(self._settings_of(streams, self.device))
            self.numbers.add([stream.generator for stream in streams])
        self.state, self.tokens_B, self.counts_BV = state, tokens_B, counts_BV
        self.left_B, self._settings, self.made = left_B, settings, None
        self.streams += streams
        self._note_readers()

    def taken(self, row: int) -> Row:
        """A row as it leaves the batch to come back; `keep` drops it."""
        stream, counts_BV = self.streams[row], self.counts_BV
        counts_1V = None if counts_BV is None else counts_BV[row : row + 1].clone()
        taken = Row(stream, self.state.select([row]), 0, stream.tokens[-1], counts_1V)
        if self._on_device:
            self.numbers.take_back(row)
        return taken

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows."""
        if len(rows) == len(self.streams):
            return
        if not rows:
            self.clear()
            return
        self.streams, self.made = [self.streams[row] for row in rows], None
        index = torch.tensor(rows, dtype=torch.long, device=self.device)
        self.state = self.state.select(index)
        self.tokens_B = self.tokens_B[index]
        if self.counts_BV is not None:
            self.counts_BV = self.counts_BV[index.to(self.counts_BV.device)]
        if self._on_device:
            self.numbers.keep(rows)
            self.left_B = self.left_B[rows]
        if self._settings is not None and self._on_device:
            self._settings = self._settings.keep(index, self._options_of(self.streams))
        else:
            self._settings = None
        self._note_readers()

    def renew_left(self) -> None:
        """Look at how far readers have read since."""
        for row in self._read_rows:
            self.left_B[row] = _left([self.streams[row]])[0]

    def settings(self, device: torch.device) -> RowSettings:
        """The rows' settings of decoding, there."""
        if self._settings is None:
            self._settings = self._settings_of(self.streams, device)
        # Rows without penalties need no counts, and rows with them have no tokens yet.
        if not self._settings.has_penalties:
            self.counts_BV = None
        return self._settings

    def _settings_of(self, streams: Sequence[Stream], device: torch.device) -> RowSettings:
        return RowSettings.of(self._options_of(streams), device)

    def _options_of(self, streams: Sequence[Stream]) -> list[DecodeOptions]:
        return [stream.continuation.config or DecodeOptions() for stream in streams]

    def _note_readers(self) -> None:
        self._read_rows = [
            row
            for row, stream in enumerate(self.streams)
            if stream.continuation.max_unread is not None
        ]


class _Placed(Protocol):
    """What has a row of a state that it may share with others."""

    state: State
    row: int


def gathered(rows: Sequence[_Placed]) -> State:
    """The state of each, in one state."""
    states = {id(row.state): row.state for row in rows}
    firsts, number = {}, 0
    for key, state in states.items():
        firsts[key] = number
        number += state.batch_size
    whole = State.cat(list(states.values())) if len(states) > 1 else rows[0].state
    places = [firsts[id(row.state)] + row.row for row in rows]
    return whole if places == list(range(number)) else whole.select(places)


def _left(streams: Sequence[Stream]) -> NDArray[np.int64]:
    """Tokens that each may make before it ends or pauses."""
    left = [max(1, min(one.max_tokens, one.pause_at) - len(one.tokens)) for one in streams]
    return np.array(left, np.int64)
