"""Cache of states after prefixes, for continuations that begin the same way.

A recurrent model's state after a prefix of any length takes a few kilobytes, and saves reading the
prefix again. The least recently used states are evicted. States are stored in blocks: allocated one
by one between large temporary tensors, each would keep several times its size of memory in use.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from elman.nn.state import State

BLOCK_ROWS = 256
"""States per block."""


Place = tuple[int, int]
"""Where a state is stored: block and row."""


class Prefix:
    """A token sequence with a hash for each of its prefixes."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("q", tokens)

    @cached_property
    def hashes(self) -> list[int]:
        hashes = [0]
        for token in self.tokens:
            hashes.append(hash((hashes[-1], token)))
        return hashes

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class _Entry:
    tokens: bytes
    """To tell prefixes of equal hash apart."""
    place: Place
    num_bytes: int


class _Blocks:
    """Storage for single-row states of one shape."""

    def __init__(self) -> None:
        self._blocks: list[State] = []
        self._free: list[Place] = []

    def take(self, like: State) -> Place:
        """A free place for a state."""
        if not self._free:
            rows = range(BLOCK_ROWS)
            self._free = [(len(self._blocks), row) for row in reversed(rows)]
            self._blocks.append(like.map(lambda t: t.new_empty(len(rows), *t.shape[1:])))
        return self._free.pop()

    def put(self, state: State, rows: dict[Place, int]) -> None:
        """Copy rows of a state to their places."""
        blocks: dict[int, list[tuple[int, int]]] = {}
        for (block, place), row in rows.items():
            blocks.setdefault(block, []).append((place, row))
        for block, pairs in blocks.items():
            places, sources = (list(column) for column in zip(*pairs, strict=True))
            targets = self._blocks[block].flatten().values()
            one = slice(sources[0], sources[0] + 1)
            chosen = state.select(one if len(pairs) == 1 else sources)
            for target, tensor in zip(targets, chosen.flatten().values(), strict=True):
                if len(pairs) > 1:
                    index = torch.tensor(places, device=target.device)
                    target.index_copy_(0, index, tensor)
                else:
                    target[places[0]] = tensor[0]

    def copies(self, places: Sequence[Place]) -> State:
        """(B, ...) copies of states, in the order of `places`."""
        blocks: dict[int, list[int]] = {}
        order: dict[Place, int] = {}
        for block, row in places:
            blocks.setdefault(block, []).append(row)
        parts = []
        for block, rows in blocks.items():
            for row in rows:
                order.setdefault((block, row), len(order))
            some = list(dict.fromkeys(rows))
            parts.append(self._blocks[block].select(some))
        found = parts[0] if len(parts) == 1 else State.cat(parts)
        wanted = [order[place] for place in places]
        return found if wanted == list(range(len(order))) else found.select(wanted)

    def free(self, place: Place) -> None:
        self._free.append(place)


class PrefixCache:
    """The most recently used states, within `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[tuple[int, int], _Entry] = OrderedDict()
        self._lengths: Counter[int] = Counter()
        """How many entries there are of each length."""
        self._states = _Blocks()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, prefix: Prefix, at_most: int) -> tuple[int, Place | None]:
        """The longest cached prefix of at most `at_most` tokens: its length, and the place of its
        state, which is valid until the next `put_all`."""
        lengths: Iterable[int] = range(at_most, 0, -1)
        if len(self._lengths) < at_most:
            lengths = sorted([n for n in self._lengths if n <= at_most], reverse=True)
        for length in lengths:
            key = (length, prefix.hashes[length])
            entry = self._entries.get(key)
            if entry is not None and entry.tokens == prefix.tokens[:length].tobytes():
                self._entries.move_to_end(key)
                self.hits += 1
                return length, entry.place
        self.misses += 1
        return 0, None

    def states(self, places: Sequence[Place]) -> State:
        """(B, ...) copies of the states at these places."""
        return self._states.copies(places)

    def put_all(self, entries: Iterable[tuple[Prefix, int, int]], state: State) -> None:
        """Cache rows of a state: each entry has a prefix, the tokens read of it, and the row."""
        if not self.max_bytes:
            return
        tensors = state.flatten().values()
        row_bytes = sum(tensor[:1].numel() * tensor.element_size() for tensor in tensors)
        rows: dict[Place, int] = {}
        for prefix, length, row in entries:
            tokens = prefix.tokens[:length].tobytes()
            size = len(tokens) + row_bytes
            if size > self.max_bytes:
                continue
            key = (length, prefix.hashes[length])
            if key in self._entries:
                self._evict(key)
            place = self._states.take(state)
            rows[place] = row  # the last one, if a place is freed and taken again meanwhile
            self.num_bytes += size
            self._entries[key] = _Entry(tokens, place, size)
            self._lengths[length] += 1
            while self.num_bytes > self.max_bytes:
                self._evict(next(iter(self._entries)))
        self._states.put(state, rows)

    def _evict(self, key: tuple[int, int]) -> None:
        entry = self._entries.pop(key)
        self._lengths[key[0]] -= 1
        if not self._lengths[key[0]]:
            del self._lengths[key[0]]
        self.num_bytes -= entry.num_bytes
        self._states.free(entry.place)
