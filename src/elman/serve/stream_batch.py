"""Continuous batching: streams of one model advance together, join and leave at any token.

A recurrent model's memory of a stream is one row of a state, so a batch is a state with a row per
stream (`batch_rows.py`). `advance` is one turn: drop cancelled streams, read waiting prompts a
piece further (`prompts.py`), add those that are read to the batch, and make the next token of every
stream. A stream whose reader does not read leaves the batch with its row of the state, and comes
back when it does.

No threads or clocks here; `engine.py` drives it. A stream's tokens do not depend on the other
streams: rows are computed independently, and each has its own generator.

On a GPU a turn makes several tokens of every stream (`decode/streams_on_device.py`), but only one
while there are prompts to read or streams without a token.

B rows, V vocabulary, K steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch

from elman.base.errors import ElmanError, UsageError
from elman.decode.processors import process
from elman.decode.sample import choose, impossible, logprobs_of, most_likely
from elman.decode.streams_on_device import MOST_STEPS, Made, Streams, StreamSteps
from elman.models.decoding import Decoding, for_decoding
from elman.models.interface import LanguageModel, reading
from elman.nn.graphed import Capture
from elman.serve.batch_rows import BatchRows, Row
from elman.serve.prefixes import Prefix, PrefixCache
from elman.serve.prompts import Prompt, Prompts, most_tokens
from elman.serve.streams import Alternatives, Continuation, Stream


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
        with reading(self.model):
            initial = self.model.initial_state(1)
        self._prompts = Prompts(
            self.model, boundary_id=boundary_id, initial=initial, cache=self.cache
        )
        vocab_size, device = self.model.vocab_size, self._prompts.device
        self._paused: list[Row] = []
        self.steps: StreamSteps | None = None
        """What makes several tokens per turn."""
        on_a_gpu = isinstance(self.model, Decoding) and device.type == "cuda"
        if on_a_gpu or capture is not None:
            self.steps = StreamSteps(
                self.model.step,
                device,
                vocab_size=vocab_size,
                end_ids=self.end_ids,
                capture=capture,
            )
        self._rows = BatchRows(initial, vocab_size=vocab_size, on_device=self.steps is not None)
        self._is_end_V = np.zeros(vocab_size, np.bool_)
        self._is_end_V[sorted(self.end_ids)] = True
        self._changed: dict[Stream, None] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._prompts.waiting)

    @property
    def num_streams(self) -> int:
        """Streams that read their prompt or generate."""
        return self._prompts.num_reading + len(self._rows.streams)

    @property
    def num_paused(self) -> int:
        return len(self._paused)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, unless a reader reads."""
        if self._prompts.waiting or self._prompts.reading or self._rows.streams:
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
        self._prompts.waiting.append(stream)

    def fail(self, error: ElmanError) -> list[Stream]:
        """End every stream with an error."""
        streams = list(dict.fromkeys(self._all()))
        self._prompts.clear()
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
            self._prompts.admit(self.max_streams - self.num_streams)
            self._read_prompts()
            if self._rows.streams:
                self._step()
        return list(self._changed)

    def _all(self) -> list[Stream]:
        paused = [row.stream for row in self._paused]
        return [*self._prompts.streams(), *paused, *self._rows.streams]

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
        self._prompts.drop_cancelled()
        self._paused = [row for row in self._paused if not row.stream.cancelled]
        self._keep([i for i, stream in enumerate(self._rows.streams) if not stream.cancelled])

    def _read_prompts(self) -> None:
        """Read prompts, as many tokens as a turn may, and add those that are read to the batch."""
        budget = most_tokens(self._rows.device)
        self._join_ready(self._prompts.reading)
        while self._prompts.reading and budget > 0:
            prompts, number = self._prompts.read_piece(budget)
            budget -= number
            self.statistics.prompt_tokens += number
            self._join_ready(prompts)

    def _join_ready(self, prompts: list[Prompt]) -> None:
        """Add streams whose prompts are read to the batch; finish those that generate nothing."""
        ready = [prompt for prompt in prompts if prompt.left == 0]
        if not ready:
            return
        self._rows.join(
            [
                Row(stream, prompt.state, prompt.row, prompt.prefix.tokens[-1])
                for prompt in ready
                for stream in prompt.streams
                if stream.continuation.config is not None
            ]
        )
        self._prompts.drop_read()
        for prompt in ready:
            for stream in prompt.streams:
                if stream.continuation.config is None:
                    self._finish(stream, "length")

    def _pause(self, rows: list[int]) -> None:
        """Take streams out of the batch that nobody reads; `_keep` drops their rows."""
        for row in rows:
            self._paused.append(taken := self._rows.taken(row))
            taken.stream.paused = True

    def _resume(self) -> None:
        """Take streams back into the batch that are read again, as many as there is room for."""
        if not self._paused:
            return
        room = max(0, self.max_streams - self.num_streams)
        ready = [row for row in self._paused if row.stream.can_go_on][:room]
        self._rows.join(ready)
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
        rows = self._rows
        rows.renew_left()
        num_steps = min(MOST_STEPS, int(rows.left_B.max()))
        k = max(stream.continuation.num_alternatives for stream in rows.streams)
        if k or self._prompts.reading or not all(stream.tokens for stream in rows.streams):
            num_steps = 1
        if rows.made is None:
            settings = rows.settings(rows.device)
            rows.made = Streams(rows.tokens_B, rows.state, settings, rows.counts_BV)
        made, rows.made = steps(rows.made, rows.left_B, rows.numbers.coming(num_steps))
        rows.tokens_B, rows.state = rows.made.tokens_B, rows.made.state
        rows.counts_BV = rows.made.counts_BV
        if k:
            assert rows.made.logprobs_BV is not None
            some = most_likely(rows.made.logprobs_BV, k)
            failed_B = np.isnan(made.logprobs_KB[0])
            for stream, alternatives, failed in zip(rows.streams, some, failed_B, strict=True):
                if not failed:
                    _note_alternatives(stream, alternatives)
        self.statistics.steps += num_steps
        self._take(made)

    def _take(self, made: Made) -> None:
        """Hand out what was made, and remove the streams that ended or pause."""
        rows = self._rows
        num_steps = len(made.tokens_KB)
        failed_KB = np.isnan(made.logprobs_KB)
        ends_KB = self._is_end_V[made.tokens_KB] | failed_KB
        ended_B = ends_KB.any(axis=0)
        number_B = np.minimum(np.where(ended_B, ends_KB.argmax(axis=0) + 1, num_steps), rows.left_B)
        last_B = (number_B - 1, np.arange(len(number_B)))
        ended_B = ends_KB[last_B]
        failed_B = failed_KB[last_B]
        rows.left_B -= number_B
        rows.numbers.use(number_B)
        self.statistics.generated_tokens += int(number_B.sum())
        # One list: thousands of small ones at a time would start the garbage collector.
        tokens, logprobs = made.tokens_KB.T.ravel().tolist(), made.logprobs_KB.T.ravel().tolist()
        numbers, first = (number_B - failed_B).tolist(), 0
        for stream, number in zip(rows.streams, numbers, strict=True):
            stream.logprobs += logprobs[first : first + number]
            stream.tokens += tokens[first : first + number]  # readers look at these first
            first += num_steps
        self._changed.update(dict.fromkeys(rows.streams))
        leaving_B = ended_B | (rows.left_B == 0)
        unread: list[int] = []
        for row in np.flatnonzero(leaving_B).tolist():
            stream = rows.streams[row]
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
        if len(left) < len(self._rows.streams):
            self._cache_states(left)
            self._keep(left)

    def _step_here(self) -> None:
        """Make a token of every stream, which the host chooses."""
        rows = self._rows
        logprobs_BV, rows.state = self.model.step(rows.tokens_B, rows.state)
        settings = rows.settings(logprobs_BV.device)
        if settings.has_penalties and rows.counts_BV is None:
            rows.counts_BV = torch.zeros_like(logprobs_BV, dtype=torch.float32)
        scores_BV = process(logprobs_BV, settings, rows.counts_BV)
        tokens_B, possible = choose(
            scores_BV, settings, [stream.generator.source for stream in rows.streams]
        )
        if rows.counts_BV is not None:
            rows.counts_BV.scatter_add_(
                1, tokens_B[:, None], torch.ones_like(rows.counts_BV[:, :1])
            )
        chosen = logprobs_of(logprobs_BV, tokens_B)
        tokens = tokens_B.tolist()
        k = max(stream.continuation.num_alternatives for stream in rows.streams)
        alternatives = most_likely(logprobs_BV, k)
        rows.tokens_B = tokens_B.to(rows.device)
        self.statistics.steps += 1
        self.statistics.generated_tokens += len(tokens)
        left, unread = [], []
        for row, stream in enumerate(rows.streams):
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

    def _cache_states(self, left: list[int]) -> None:
        """Cache the states of streams cut by their length: many are continued later."""
        entries = []
        for row in set(range(len(self._rows.streams))) - set(left):
            stream = self._rows.streams[row]
            if stream.finish_reason == "length" and self.cache.max_bytes:
                prompt = stream.continuation.prompt
                prefix = Prefix([self.boundary_id, *prompt, *stream.tokens[:-1]])
                entries.append((prefix, len(prefix), row))
        if entries:
            self.cache.put_all(entries, self._rows.state)

    def _keep(self, left: list[int]) -> None:
        """Drop all rows of the batch but those `left`."""
        if len(left) == len(self._rows.streams):
            return
        if left:
            self._rows.keep(left)
        else:
            self._empty()

    def _empty(self) -> None:
        """Make the batch one without streams, whatever it is."""
        self._rows.clear()
        if self.steps is not None:
            self.steps.let_go()


def _note_alternatives(stream: Stream, alternatives: Alternatives) -> None:
    """Report as many as the stream asked for beside its next token."""
    if number := stream.continuation.num_alternatives:
        stream.alternatives.append(alternatives[:number])
