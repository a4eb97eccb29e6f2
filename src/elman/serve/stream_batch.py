"""Continuous batching: streams of one model advance together, join and leave at any token.

A recurrent model's memory of a stream is one row of a state, so a batch is a state with a row per
stream. `advance` is one turn: drop cancelled streams, read waiting prompts a piece further, add
those that are read to the batch, and make the next token of every stream. Reading prompts in pieces
bounds how long a new prompt delays the other streams. A stream whose reader does not read leaves
the batch with its row of the state, and comes back when it does.

No threads or clocks here; `engine.py` drives it. A stream's tokens do not depend on the other
streams: rows are computed independently, and each has its own generator.

On a GPU a turn makes several tokens of every stream (`decode/streams_on_device.py`), but only one
while there are prompts to read or streams without a token.

B rows, T time steps, V vocabulary, K alternatives, N positions of all rows.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.base.errors import ElmanError, UsageError
from elman.decode.options import DecodeOptions
from elman.decode.prefix import device_of, over_distributions, read
from elman.decode.processors import process
from elman.decode.random_numbers import Numbers
from elman.decode.rows import RowSettings
from elman.decode.sample import choose, impossible, logprobs_of, most_likely
from elman.decode.streams_on_device import MOST_STEPS, Made, Streams, StreamSteps
from elman.models.decoding import Decoding, for_decoding
from elman.models.interface import LanguageModel, reading
from elman.nn.graphed import Capture
from elman.nn.state import State
from elman.serve.prefixes import Place, Prefix, PrefixCache
from elman.serve.streams import Alternatives, Continuation, Stream

READ_TOKENS = 512
"""Prompt tokens read per turn, which bounds the delay of running streams."""
READ_TOKENS_ON_A_GPU = 65_536
"""It reads these in less time than a CPU needs for the others."""
PIECE_LENGTH = 32
"""Tokens of each prompt read at once, rather than fewer tokens of more prompts: what a prompt costs
besides the network's arithmetic does not depend on their number."""
CACHE_STRIDE = 128
"""Cache the state at the end of a prompt and after every n-th token of it."""


class _Reading:
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


@dataclass
class _Row:
    """A stream on its way into the batch."""

    stream: Stream
    state: State
    row: int
    """Of the state."""
    last: int
    """The token to read next."""
    counts_1V: Tensor | None = None


@dataclass
class Statistics:
    """Totals since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    """Read, without those that were cached."""
    generated_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    """Streams by finish reason."""


class StreamBatch:
    """The streams of one model."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        boundary_id: int,
        end_ids: Collection[int] = frozenset(),
        max_streams: int = 256,
        cache: PrefixCache | None = None,
        capture: Capture | None = None,
    ) -> None:
        """`capture` makes several tokens per turn also without a GPU, for tests."""
        self.model = for_decoding(model)
        self.boundary_id = boundary_id
        self.end_ids = frozenset(end_ids)
        self.max_streams = max_streams
        self.cache = PrefixCache(0) if cache is None else cache
        self.statistics = Statistics()
        self._queue: deque[Stream] = deque()
        self._reading: list[_Reading] = []
        with reading(self.model):
            self._initial = self.model.initial_state(1)
        self._device = device_of(self._initial)
        self._paused: list[_Row] = []
        self._no_state = self._initial.select([])
        self._no_tokens = torch.empty(0, dtype=torch.long, device=self._device)
        self.steps: StreamSteps | None = None
        """What makes several tokens per turn."""
        on_a_gpu = isinstance(self.model, Decoding) and self._device.type == "cuda"
        if on_a_gpu or capture is not None:
            self.steps = StreamSteps(
                self.model.step,
                self._device,
                vocab_size=self.model.vocab_size,
                end_ids=self.end_ids,
                capture=capture,
            )
        self._is_end_V = np.zeros(self.model.vocab_size, np.bool_)
        self._is_end_V[sorted(self.end_ids)] = True
        self._changed: dict[Stream, None] = {}
        self._empty()

    def _empty(self) -> None:
        """Make the batch one without streams, whatever it is."""
        self._streams: list[Stream] = []
        self._state, self._tokens_B = self._no_state, self._no_tokens
        self._settings: RowSettings | None = None
        """None if rows have changed since."""
        self._counts_BV: Tensor | None = None
        self._made: Streams | None = None
        """The batch as `steps` left it; None if rows have changed since."""
        self._numbers = Numbers()
        self._left_B = np.empty(0, np.int64)
        """Tokens that each stream may make before it ends or pauses."""
        self._read_rows: list[int] = []
        """Streams that pause if they are not read."""
        if self.steps is not None:
            self.steps.let_go()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def num_streams(self) -> int:
        """Streams that read their prompt or generate."""
        return sum(len(row.streams) for row in self._reading) + len(self._streams)

    @property
    def num_paused(self) -> int:
        return len(self._paused)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, unless a reader reads."""
        if self._queue or self._reading or self._streams:
            return False
        return not any(row.stream.can_go_on for row in self._paused)

    def check(self, wanted: Continuation) -> None:
        """Raise `UsageError` for ids outside the vocabulary."""
        vocab_size = self.model.vocab_size
        bias = {} if wanted.config is None else wanted.config.logit_bias
        for name, tokens in (("prompt", wanted.prompt), ("logit_bias", tuple(bias))):
            for token in tokens:
                if not 0 <= token < vocab_size:
                    raise UsageError(
                        f"{name}: token {token} is not in the vocabulary",
                        f"ids go from 0 to {vocab_size - 1}",
                    )

    def add(self, stream: Stream) -> None:
        """Queue a stream."""
        self._queue.append(stream)

    def fail(self, error: ElmanError) -> list[Stream]:
        """End every stream with an error."""
        streams = list(dict.fromkeys(self._all()))
        self._queue.clear()
        self._reading.clear()
        self._paused.clear()
        self._empty()
        for stream in streams:
            if stream.finish_reason is None:
                self._finish(stream, "error", error)
        return streams

    def advance(self) -> list[Stream]:
        """Make one turn; return the streams that changed."""
        self._changed = {}
        with reading(self.model):
            self._drop_cancelled()
            self._resume()
            self._admit()
            self._read_prompts()
            if self._streams:
                self._step()
        return list(self._changed)

    def _all(self) -> list[Stream]:
        reading = [stream for row in self._reading for stream in row.streams]
        paused = [row.stream for row in self._paused]
        return [*self._queue, *reading, *paused, *self._streams]

    def _finish(self, stream: Stream, reason: str, error: ElmanError | None = None) -> None:
        stream.error = error
        stream.finish_reason = reason
        self.statistics.finished[reason] = self.statistics.finished.get(reason, 0) + 1
        self._changed[stream] = None

    def _drop_cancelled(self) -> None:
        cancelled = [stream for stream in self._all() if stream.cancelled]
        if not cancelled:
            return
        for stream in cancelled:
            self._finish(stream, "cancelled")
        self._queue = deque(stream for stream in self._queue if not stream.cancelled)
        for row in self._reading:
            row.streams = [stream for stream in row.streams if not stream.cancelled]
        self._reading = [row for row in self._reading if row.streams]
        self._paused = [row for row in self._paused if not row.stream.cancelled]
        self._keep([i for i, stream in enumerate(self._streams) if not stream.cancelled])

    def _admit(self) -> None:
        """Start reading queued prompts; streams whose prompt is being read already share it."""
        room = self.max_streams - self.num_streams
        if not self._queue or room <= 0:
            return
        begun = {row.key: row for row in reversed(self._reading) if not row.is_reported}
        found: list[tuple[_Reading, int, Place]] = []
        while self._queue and room > 0:
            room -= 1
            stream = self._queue.popleft()
            row = _Reading(stream, self.boundary_id, self._initial)
            same = begun.setdefault(row.key, row)
            if same is not row:
                stream.num_cached = max(0, same.position - 1)
                same.streams.append(stream)
                continue
            if not stream.continuation.score_prompt:
                number, place = self.cache.find(row.prefix, row.left)
                if place is not None:
                    found.append((row, number, place))
                    stream.num_cached = number - 1
                    row.position = number  # for streams that join
            self._reading.append(row)
        if found:
            state = self.cache.states([place for _, _, place in found])
            for i, (row, number, _) in enumerate(found):
                row.position = 0
                row.advance(number, state, i)

    def _read_prompts(self) -> None:
        """Read up to `READ_TOKENS` tokens, without padding."""
        budget = READ_TOKENS_ON_A_GPU if self._device.type == "cuda" else READ_TOKENS
        self._join_ready(self._reading)
        while self._reading and budget > 0:
            rows, length = self._next_piece(budget)
            tokens_BT = self._piece(rows, 0, length)
            state = _gathered(rows)
            if rows[0].streams[0].continuation.score_prompt:
                state = self._score(rows, tokens_BT, length, state)
            else:
                state = read(self.model, tokens_BT, state)
            budget -= length * len(rows)
            self.statistics.prompt_tokens += length * len(rows)
            for i, row in enumerate(rows):
                row.advance(length, state, i)
            self.cache.put_all(
                (
                    (row.prefix, row.position, row.row)
                    for row in rows
                    if row.left == 0 or row.position % CACHE_STRIDE == 0
                ),
                state,
            )
            self._join_ready(rows)

    def _next_piece(self, budget: int) -> tuple[list[_Reading], int]:
        """Prompts to read together, the first one among them, and how many tokens of each."""
        first = self._reading[0]
        length = min(first.left, CACHE_STRIDE - first.position % CACHE_STRIDE, budget)
        rows: list[_Reading] = []
        for row in self._reading:
            if row.kind == first.kind:
                shortest = min(length, row.left)
                if rows and (len(rows) + 1) * min(shortest, PIECE_LENGTH) > budget:
                    break
                rows.append(row)
                length = shortest
        return rows, min(length, budget // len(rows))

    def _score(self, rows: list[_Reading], tokens_BT: Tensor, length: int, state: State) -> State:
        """Read a piece of prompts, and report the log probabilities of its tokens."""
        targets_BT = self._piece(rows, 1, length)
        k = max(stream.continuation.num_alternatives for row in rows for stream in row.streams)
        if k == 0:
            logprobs_BT, state = self.model.logprobs(tokens_BT, targets_BT, state)
            for row, logprobs in zip(rows, logprobs_BT.tolist(), strict=True):
                for stream in row.streams:
                    stream.prompt_logprobs += logprobs
            return state

        def summarise(logprobs_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            chosen_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
            values_NK, tokens_NK = logprobs_NV.topk(min(k, logprobs_NV.shape[-1]), dim=-1)
            return chosen_N, values_NK, tokens_NK

        summary, state = over_distributions(self.model, tokens_BT, targets_BT, state, summarise)
        for row, chosen, values, tokens in zip(rows, *(x.tolist() for x in summary), strict=True):
            for stream in row.streams:
                stream.prompt_logprobs += chosen
                stream.prompt_alternatives += [
                    tuple(zip(some, their, strict=True))[: stream.continuation.num_alternatives]
                    for some, their in zip(tokens, values, strict=True)
                ]
        return state

    def _join_ready(self, rows: list[_Reading]) -> None:
        """Add streams whose prompts are read to the batch; finish those that generate nothing."""
        ready = [row for row in rows if row.left == 0]
        if not ready:
            return
        self._join(
            [
                _Row(stream, row.state, row.row, row.prefix.tokens[-1])
                for row in ready
                for stream in row.streams
                if stream.continuation.config is not None
            ]
        )
        self._reading = [row for row in self._reading if row.left]
        for row in ready:
            for stream in row.streams:
                if stream.continuation.config is None:
                    self._finish(stream, "length")

    def _join(self, rows: list[_Row]) -> None:
        """Add rows to the batch: all of them, or none if it fails, as without memory. The caller
        drops them elsewhere afterwards, so that `fail` finds them."""
        if not rows:
            return
        counts_BV = self._counts_BV
        counts = [row.counts_1V for row in rows]
        known = next((one for one in (counts_BV, *counts) if one is not None), None)
        if known is not None:
            before = known.new_zeros(len(self._streams), self.model.vocab_size)
            nothing = known.new_zeros(1, self.model.vocab_size)
            counts_BV = torch.cat(
                [
                    before if counts_BV is None else counts_BV,
                    *(nothing if one is None else one for one in counts),
                ]
            )
        state = _gathered(rows)
        if self._streams:
            state = State.cat([self._state, state])
        last_B = self._tensor([row.last for row in rows])
        tokens_B = torch.cat([self._tokens_B, last_B])
        streams, left_B, settings = [row.stream for row in rows], self._left_B, None
        if self.steps is not None:
            left_B = np.concatenate([left_B, _left(streams)])
            if self._settings is not None:
                settings = self._settings.join(self._settings_of(streams, self._device))
            self._numbers.add([stream.generator for stream in streams])
        self._state, self._tokens_B, self._counts_BV = state, tokens_B, counts_BV
        self._left_B, self._settings, self._made = left_B, settings, None
        self._streams += streams
        self._note_readers()

    def _pause(self, rows: list[int]) -> None:
        """Take streams out of the batch that nobody reads; `_keep` drops their rows."""
        for row in rows:
            stream, counts_BV = self._streams[row], self._counts_BV
            counts_1V = None if counts_BV is None else counts_BV[row : row + 1].clone()
            state = self._state.select([row])
            self._paused.append(_Row(stream, state, 0, stream.tokens[-1], counts_1V))
            stream.paused = True
            if self.steps is not None:
                self._numbers.take_back(row)

    def _resume(self) -> None:
        """Take streams back into the batch that are read again, as many as there is room for."""
        if not self._paused:
            return
        room = max(0, self.max_streams - self.num_streams)
        ready = [row for row in self._paused if row.stream.can_go_on][:room]
        self._join(ready)
        for row in ready:
            row.stream.paused = False
        self._paused = [row for row in self._paused if row.stream.paused]

    def _step(self) -> None:
        """Make the next token of every stream, or the next ones."""
        if self.steps is None:
            self._step_here()
        else:
            self._step_there(self.steps)

    def _step_there(self, steps: StreamSteps) -> None:
        """Make tokens on the device: one if somebody waits for it, else several."""
        for row in self._read_rows:
            self._left_B[row] = _left([self._streams[row]])[0]
        num_steps = min(MOST_STEPS, int(self._left_B.max()))
        k = max(stream.continuation.num_alternatives for stream in self._streams)
        if k or self._reading or not all(stream.tokens for stream in self._streams):
            num_steps = 1
        if self._made is None:
            settings = self._row_settings(self._device)
            self._made = Streams(self._tokens_B, self._state, settings, self._counts_BV)
        made, self._made = steps(self._made, self._left_B, self._numbers.coming(num_steps))
        self._tokens_B, self._state = self._made.tokens_B, self._made.state
        self._counts_BV = self._made.counts_BV
        if k:
            assert self._made.logprobs_BV is not None
            some = most_likely(self._made.logprobs_BV, k)
            failed_B = np.isnan(made.logprobs_KB[0])
            for stream, alternatives, failed in zip(self._streams, some, failed_B, strict=True):
                if not failed:
                    _note_alternatives(stream, alternatives)
        self.statistics.steps += num_steps
        self._take(made)

    def _take(self, made: Made) -> None:
        """Hand out what was made, and remove the streams that ended or pause."""
        num_steps = len(made.tokens_KB)
        failed_KB = np.isnan(made.logprobs_KB)
        ends_KB = self._is_end_V[made.tokens_KB] | failed_KB
        ended_B = ends_KB.any(axis=0)
        number_B = np.minimum(
            np.where(ended_B, ends_KB.argmax(axis=0) + 1, num_steps), self._left_B
        )
        last_B = (number_B - 1, np.arange(len(number_B)))
        ended_B = ends_KB[last_B]
        failed_B = failed_KB[last_B]
        self._left_B -= number_B
        self._numbers.use(number_B)
        self.statistics.generated_tokens += int(number_B.sum())
        # One list: thousands of small ones at a time would start the garbage collector.
        tokens, logprobs = made.tokens_KB.T.ravel().tolist(), made.logprobs_KB.T.ravel().tolist()
        numbers, first = (number_B - failed_B).tolist(), 0
        for stream, number in zip(self._streams, numbers, strict=True):
            stream.logprobs += logprobs[first : first + number]
            stream.tokens += tokens[first : first + number]  # readers look at these first
            first += num_steps
        self._changed.update(dict.fromkeys(self._streams))
        leaving_B = ended_B | (self._left_B == 0)
        unread: list[int] = []
        for row in np.flatnonzero(leaving_B).tolist():
            stream = self._streams[row]
            if failed_B[row]:
                self._finish(stream, "error", impossible())
            elif ended_B[row]:
                self._finish(stream, "stop")
            elif len(stream.tokens) >= stream.max_tokens:
                self._finish(stream, "length")
            else:
                unread.append(row)
        self._leave(np.flatnonzero(~leaving_B).tolist(), unread)

    def _leave(self, left: list[int], unread: list[int]) -> None:
        """Remove all streams but those `left`; `unread` ones pause."""
        self._pause(unread)
        if len(left) < len(self._streams):
            self._cache_states(left)
            self._keep(left)

    def _step_here(self) -> None:
        """Make a token of every stream, which the host chooses."""
        logprobs_BV, self._state = self.model.step(self._tokens_B, self._state)
        settings = self._row_settings(logprobs_BV.device)
        if settings.has_penalties and self._counts_BV is None:
            self._counts_BV = torch.zeros_like(logprobs_BV, dtype=torch.float32)
        scores_BV = process(logprobs_BV, settings, self._counts_BV)
        tokens_B, possible = choose(
            scores_BV, settings, [stream.generator.source for stream in self._streams]
        )
        if self._counts_BV is not None:
            self._counts_BV.scatter_add_(
                1, tokens_B[:, None], torch.ones_like(self._counts_BV[:, :1])
            )
        chosen = logprobs_of(logprobs_BV, tokens_B)
        tokens = tokens_B.tolist()
        k = max(stream.continuation.num_alternatives for stream in self._streams)
        alternatives = most_likely(logprobs_BV, k)
        self._tokens_B = tokens_B.to(self._device)
        self.statistics.steps += 1
        self.statistics.generated_tokens += len(tokens)
        left, unread = [], []
        for row, stream in enumerate(self._streams):
            if not possible[row] or math.isnan(chosen[row]):
                self._finish(stream, "error", impossible())
                continue
            _note_alternatives(stream, alternatives[row])
            stream.logprobs.append(chosen[row])
            stream.tokens.append(tokens[row])
            self._changed[stream] = None
            if tokens[row] in self.end_ids:
                self._finish(stream, "stop")
            elif len(stream.tokens) >= stream.max_tokens:
                self._finish(stream, "length")
            elif len(stream.tokens) >= stream.pause_at:
                unread.append(row)
            else:
                left.append(row)
        self._leave(left, unread)

    def _row_settings(self, device: torch.device) -> RowSettings:
        if self._settings is None:
            self._settings = self._settings_of(self._streams, device)
        # Rows without penalties need no counts, and rows with them have no tokens yet.
        if not self._settings.has_penalties:
            self._counts_BV = None
        return self._settings

    def _cache_states(self, left: list[int]) -> None:
        """Cache the states of streams cut by their length: many are continued later."""
        entries = []
        for row in set(range(len(self._streams))) - set(left):
            stream = self._streams[row]
            if stream.finish_reason == "length" and self.cache.max_bytes:
                prompt = stream.continuation.prompt
                prefix = Prefix([self.boundary_id, *prompt, *stream.tokens[:-1]])
                entries.append((prefix, len(prefix), row))
        if entries:
            self.cache.put_all(entries, self._state)

    def _keep(self, rows: list[int]) -> None:
        """Drop all other rows of the batch."""
        if len(rows) == len(self._streams):
            return
        if not rows:
            self._empty()
            return
        self._streams, self._made = [self._streams[row] for row in rows], None
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._state = self._state.select(index)
        self._tokens_B = self._tokens_B[index]
        if self._counts_BV is not None:
            self._counts_BV = self._counts_BV[index.to(self._counts_BV.device)]
        if self.steps is not None:
            self._numbers.keep(rows)
            self._left_B = self._left_B[rows]
        if self._settings is not None and self.steps is not None:
            self._settings = self._settings.keep(index, self._options_of(self._streams))
        else:
            self._settings = None
        self._note_readers()

    def _settings_of(self, streams: Sequence[Stream], device: torch.device) -> RowSettings:
        return RowSettings.of(self._options_of(streams), device)

    def _options_of(self, streams: Sequence[Stream]) -> list[DecodeOptions]:
        return [stream.continuation.config or DecodeOptions() for stream in streams]

    def _note_readers(self) -> None:
        self._read_rows = [
            row
            for row, stream in enumerate(self._streams)
            if stream.continuation.max_unread is not None
        ]

    def _piece(self, rows: list[_Reading], offset: int, length: int) -> Tensor:
        """(B, T) tokens of prompts, from `offset` after those that were read."""
        tokens = array("q")
        for row in rows:
            first = row.position + offset
            tokens += row.prefix.tokens[first : first + length]
        return self._tensor(tokens).view(len(rows), length)

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.array(ids, np.int64)).to(self._device)


def _gathered(rows: Sequence[_Reading | _Row]) -> State:
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


def _note_alternatives(stream: Stream, alternatives: Alternatives) -> None:
    """Report as many as the stream asked for beside its next token."""
    if number := stream.continuation.num_alternatives:
        stream.alternatives.append(alternatives[:number])
