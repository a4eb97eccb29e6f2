"""Cache of states after prefixes, for continuations that begin the same way.

A recurrent model's state after a prefix of any length takes a few kilobytes, and saves reading the
prefix again. The least recently used states are evicted. States are stored in blocks: allocated one
by one between large temporary tensors, each would keep several times its size of memory in use.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from elman.nn.state import State

BLOCK_ROWS = 256
"""States per block."""


class Prefix:
    """A token sequence with a hash for each of its prefixes."""

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
    """To tell prefixes of equal hash apart."""
    place: tuple[int, int]
    num_bytes: int


class _Blocks:
    """Storage for single-row states of one shape."""

    def __init__(self) -> None:
        self._blocks: list[State] = []
        self._free: list[tuple[int, int]] = []

    def put(self, state: State) -> tuple[int, int]:
        """Copy a state to a free place, and return the place."""
        if not self._free:
            rows = range(BLOCK_ROWS)
            self._free = [(len(self._blocks), row) for row in reversed(rows)]
            self._blocks.append(state.map(lambda t: t.new_empty(len(rows), *t.shape[1:])))
        block, row = self._free.pop()
        targets = self._blocks[block].flatten().values()
        for target, tensor in zip(targets, state.flatten().values(), strict=True):
            target[row] = tensor[0]
        return block, row

    def copy(self, place: tuple[int, int]) -> State:
        block, row = place
        return self._blocks[block].select(slice(row, row + 1)).map(torch.clone)

    def free(self, place: tuple[int, int]) -> None:
        self._free.append(place)


class PrefixCache:
    """The most recently used states, within `max_bytes`."""

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
        """The longest cached prefix of at most `at_most` tokens: its length and state."""
        for length in range(at_most, 0, -1):
            key = (length, prefix.hashes[length])
            entry = self._entries.get(key)
            if entry is not None and entry.tokens == prefix.tokens[:length].tobytes():
                self._entries.move_to_end(key)
                self.hits += 1
                return length, self._states.copy(entry.place)
        self.misses += 1
        return 0, None

    def put(self, prefix: Prefix, length: int, state: State) -> None:
        """Cache the single-row state after the first `length` tokens."""
        tokens = prefix.tokens[:length].tobytes()
        tensors = state.flatten().values()
        size = len(tokens) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size > self.max_bytes:
            return
        key = (length, prefix.hashes[length])
        if key in self._entries:
            self._evict(self._entries.pop(key))
        self.num_bytes += size
        self._entries[key] = _Entry(tokens, self._states.put(state), size)
        while self.num_bytes > self.max_bytes:
            self._evict(self._entries.popitem(last=False)[1])

    def _evict(self, entry: _Entry) -> None:
        self.num_bytes -= entry.num_bytes
        self._states.free(entry.place)
