"""States of prefixes that were read before, kept for those who begin the same way.

What a recurrent model knows of a prefix of any length is one small state, so keeping it costs a few
kilobytes and saves reading the prefix again. The least recently used give way when the cache is
full. States lie in blocks of many: each by itself, among the large tensors that come and go, would
hold several times its own size of the process's memory.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from elman.nn.state import State

BLOCK_ROWS = 256
"""States in a block."""


class Prefix:
    """A token sequence whose beginnings can be looked up: a running hash for each length."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("q", tokens)
        self.hashes = [0]
        for token in tokens:
            self.hashes.append(hash((self.hashes[-1], token)))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class _Entry:
    tokens: bytes
    """The prefix itself: equal hashes do not make equal prefixes."""
    place: tuple[int, int]
    num_bytes: int


class _Blocks:
    """Room for states of one row and the same form."""

    def __init__(self) -> None:
        self._blocks: list[State] = []
        self._free: list[tuple[int, int]] = []

    def put(self, state: State) -> tuple[int, int]:
        """Copy a state to a free place."""
        if not self._free:
            rows = range(BLOCK_ROWS)
            self._free = [(len(self._blocks), row) for row in reversed(rows)]
            self._blocks.append(state.map(lambda t: t.new_empty(len(rows), *t.shape[1:])))
        block, row = self._free.pop()
        rooms = self._blocks[block].flatten().values()
        for room, tensor in zip(rooms, state.flatten().values(), strict=True):
            room[row] = tensor[0]
        return block, row

    def copied(self, place: tuple[int, int]) -> State:
        """The state there."""
        block, row = place
        return self._blocks[block].select([row])

    def free(self, place: tuple[int, int]) -> None:
        """Let another have the place."""
        self._free.append(place)


class PrefixCache:
    """The states of token prefixes, the most recently used of them, within `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._states = _Blocks()

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, prefix: Prefix, at_most: int) -> tuple[int, State | None]:
        """How many of the first `at_most` tokens are known, and the state after them."""
        for length in range(at_most, 0, -1):
            key = (length, prefix.hashes[length])
            entry = self._entries.get(key)
            if entry is not None and entry.tokens == prefix.tokens[:length].tobytes():
                self._entries.move_to_end(key)
                self.hits += 1
                return length, self._states.copied(entry.place)
        self.misses += 1
        return 0, None

    def put(self, prefix: Prefix, length: int, state: State) -> None:
        """Keep the state (of one row) after the first `length` tokens."""
        tokens = prefix.tokens[:length].tobytes()
        tensors = state.flatten().values()
        size = len(tokens) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size > self.max_bytes:
            return
        key = (length, prefix.hashes[length])
        if key in self._entries:
            self._forget(self._entries.pop(key))
        self.num_bytes += size
        self._entries[key] = _Entry(tokens, self._states.put(state), size)
        while self.num_bytes > self.max_bytes:
            self._forget(self._entries.popitem(last=False)[1])

    def _forget(self, entry: _Entry) -> None:
        self.num_bytes -= entry.num_bytes
        self._states.free(entry.place)
