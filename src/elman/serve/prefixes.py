"""States of prefixes that were read before, kept for those who begin the same way.

What a recurrent model knows of a prefix of any length is one small state, so keeping it costs a few
kilobytes and saves reading the prefix again. The least recently used give way when the cache is
full.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from elman.nn.state import State


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
    state: State
    num_bytes: int


class PrefixCache:
    """The states of token prefixes, the most recently used of them, within `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()

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
                return length, entry.state
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
        replaced = self._entries.pop(key, None)
        self.num_bytes += size - (replaced.num_bytes if replaced else 0)
        self._entries[key] = _Entry(tokens, state, size)
        while self.num_bytes > self.max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
