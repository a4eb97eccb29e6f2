"""An index of a text: find any stretch of tokens in it, however long, in milliseconds.

The text and its suffix array (`suffix_array.py`) are packed to as many bits as their numbers need:
6 bytes a token for both where vocabulary size times tokens is at most 2^48, which is a billion
tokens of 262,144 types. The file is mapped and opens at once whatever its size; a search reads a
few dozen places of it. Compiled loops are in `matching.py`.

Position 0 of the text is a boundary token, as before any text. Line numbers come from the number of
line ends before every 16,384th token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.ngrams import matching
from elman.ngrams.mapped import ArrayFile, damaged, write_arrays
from elman.ngrams.matching import Ids, Numbers, Words
from elman.ngrams.model import check_ids
from elman.ngrams.scratch import Scratch
from elman.ngrams.suffix_array import DEPTH, join_arrays, suffix_array

INDEX_FILE = "index.safetensors"
FORMAT = 1
_TYPES = {"text": "U64", "places": "U64", "first": "I64", "line_ends": "I64"}
_LINES_EVERY = 1 << 14
_PACKED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a stretch of the text begins."""

    position: int
    """Number of tokens before it."""
    file: str | None
    """The file; None if the index does not know the lines of its files."""
    line: int | None
    """The line of the file, from 1."""


@dataclass
class TextIndex:
    text: Words
    """The tokens, packed."""
    places: Words
    """The position of each suffix in sorted order, packed."""
    first: Numbers
    """(V + 1,) the number of suffixes that begin with a smaller token."""
    line_ends: Numbers
    """The number of line ends before every 16,384th token."""
    num_tokens: int
    """With the boundary token in front."""
    boundary_id: int
    files: list[tuple[str, int]] = field(default_factory=list)
    """The files of the text and their numbers of lines; none if they do not fit the text."""
    file: ArrayFile | None = field(default=None, repr=False, compare=False)
    """The file that has the arrays."""

    @property
    def vocab_size(self) -> int:
        return len(self.first) - 1

    @property
    def longest(self) -> int:
        """Limit on the tokens of a match."""
        return DEPTH

    @property
    def num_bytes(self) -> int:
        arrays = (self.text, self.places, self.first, self.line_ends)
        return sum(array.nbytes for array in arrays)

    @classmethod
    def build(cls, ids: Ids, num_threads: int | None = None, **sizes: Any) -> TextIndex:
        """Index a text in memory; `sizes` as in `save_index`."""
        plan = _Plan(ids, **sizes)
        made = {name: list(parts) for name, parts in plan.arrays(num_threads=num_threads).items()}
        arrays: dict[str, Any] = {name: np.concatenate(made[name]) for name in made}
        return cls(**arrays, **plan.header)

    def count(self, tokens: Ids) -> int:
        """Count the occurrences of a stretch of tokens."""
        low, high = self.rows(tokens)
        return high - low

    def rows(self, tokens: Ids) -> tuple[int, int]:
        """The range of suffixes that begin with `tokens`."""
        check_ids(np.asarray(tokens), self.vocab_size)
        found = np.zeros(2, np.int64)
        self.run(matching.find, np.asarray(tokens[:DEPTH], np.int64), found)
        return int(found[0]), int(found[1])

    def continuations(self, low: int, high: int, depth: int) -> tuple[Numbers, Numbers]:
        """The tokens after the first `depth` tokens of a range of suffixes, most frequent first,
        and how often each follows. The end of the text is none."""
        total = np.zeros(1, np.int64)
        most = min(high - low, self.vocab_size + 1)
        tokens, rows = np.empty(most, np.int64), np.empty(most, np.int64)
        self.run(matching.continuations, low, high, depth, tokens, rows, total)
        tokens, rows = tokens[: total[0]], rows[: total[0]]
        counts = np.diff(np.append(rows, high))
        tokens, counts = tokens[tokens >= 0], counts[tokens >= 0]
        order = np.argsort(-counts, kind="stable")
        return tokens[order], counts[order]

    def follow(self, before: Ids, tokens: Ids, targets_T: Ids) -> tuple[Numbers, Numbers]:
        """Read `tokens` after the context `before`: see `matching.follow`.

        Return (T, 4) matches and the state, a position and a length.
        """
        joined = np.concatenate([before, tokens]).astype(np.int64)
        for ids in (joined, targets_T):
            check_ids(ids, self.vocab_size)
        matches, state = np.zeros((len(targets_T), 4), np.int64), np.zeros(2, np.int64)
        targets = np.ascontiguousarray(targets_T, np.int64)
        self.run(matching.follow, joined, len(before), targets, matches, state)
        return matches, state

    def stretches(self, ids_T: Ids) -> Numbers:
        """(T, 3) the longest stretch ending with each token that stands in the text: its length,
        number of occurrences, and a row."""
        ids_T = np.ascontiguousarray(ids_T, np.int64)
        check_ids(ids_T, self.vocab_size)
        found = np.zeros((len(ids_T), 3), np.int64)
        self.run(matching.stretches, ids_T, found)
        return found

    def positions(self, low: int, high: int) -> Numbers:
        """The positions of a range of suffixes."""
        return self._unpack("places", low, high - low)

    def tokens(self, position: int, number: int) -> Numbers:
        """At most `number` tokens of the text from a position on."""
        start = max(0, position)
        return self._unpack("text", start, min(position + number, self.num_tokens) - start)

    def place(self, position: int, newlines_V: NDArray[Any]) -> Place:
        """The file and the line of a position; `newlines_V` has the line ends in each token."""
        sample = position // _LINES_EVERY
        start = max(1, sample * _LINES_EVERY)  # the token in front ends no line
        line = int(self.line_ends[sample])
        line += int(newlines_V[self.tokens(start, position - start)].sum())
        for name, num_lines in self.files:
            if line < num_lines:
                return Place(position, name, line + 1)
            line -= num_lines
        return Place(position, None, None)

    def check_unchanged(self) -> None:
        """Raise an error if the index was written to since it was opened."""
        if self.file is not None:
            self.file.check_unchanged()

    def _unpack(self, name: str, first: int, number: int) -> Numbers:
        values = np.zeros(max(0, number), np.int64)
        which = list(_TYPES).index(name)
        width = self.text_bits if name == "text" else self.place_bits
        self._guarded(matching.unpack, (getattr(self, name), width), (which, first, values))
        limit = self.vocab_size if name == "text" else self.num_tokens
        if len(values) and int(values.max()) >= limit:
            raise _broken()
        return values

    def run(self, loop: Callable[..., None], *arguments: Any) -> None:
        """Call a loop of `matching` on the arrays of the index."""
        before = (
            *(self.text, self.text_bits, self.places, self.place_bits),
            *(self.num_tokens, self.first),
        )
        self._guarded(loop, before, arguments)

    def _guarded(self, loop: Callable[..., None], before: Sequence[Any], after: Any) -> None:
        self.check_unchanged()
        try:
            if self.file is None:
                loop(*before, None, *after)
            else:
                self.file.run(loop, before, after)
        except IndexError as error:
            raise _broken() from error

    @property
    def text_bits(self) -> int:
        return bits_for(self.vocab_size)

    @property
    def place_bits(self) -> int:
        return bits_for(self.num_tokens)


def bits_for(number: int) -> int:
    """The bits of the numbers below `number`."""
    return max(1, (number - 1).bit_length())


def save_index(
    path: Path,
    ids: Ids,
    *,
    vocab_size: int,
    boundary_id: int,
    newlines_V: NDArray[Any],
    files: Sequence[tuple[str, int]] = (),
    extra: dict[str, Any] | None = None,
    scratch: Scratch | None = None,
    memory: int | None = None,
    num_threads: int | None = None,
    parts: Sequence[TextIndex] = (),
) -> None:
    """Index a text and write the index, without holding it in memory.

    `files` are the names and numbers of lines of the text's files; `extra` goes into the header.
    `parts` are indexes of the text's parts, if there are: they are merged, which is quicker.
    """
    plan = _Plan(ids, vocab_size, boundary_id, newlines_V, files, scratch, parts)
    made = plan.arrays(memory, num_threads)
    arrays = {name: (_TYPES[name], [plan.sizes[name]], parts) for name, parts in made.items()}
    write_arrays(path, {"format": FORMAT, **plan.header, **(extra or {})}, arrays)


def load_index(path: Path) -> tuple[TextIndex, dict[str, Any]]:
    """Open an index; also return its whole header."""
    file = ArrayFile(path, _TYPES, FORMAT, {})
    header = file.header
    names = ("num_tokens", "boundary_id", "files")
    try:
        about: dict[str, Any] = {name: header[name] for name in names}
        index = TextIndex(**dict[str, Any](file.arrays), **about, file=file)
        index.files = [(str(name), int(lines)) for name, lines in index.files]
        file.verify("first")
        file.verify("line_ends")
        whole = _consistent(index)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, "its header lacks entries") from error
    if not whole:
        raise damaged(path, "its arrays do not belong together")
    return index, header


@dataclass
class _Plan:
    """The arrays of an index, made part by part."""

    ids: Ids
    vocab_size: int
    boundary_id: int
    newlines_V: NDArray[Any]
    files: Sequence[tuple[str, int]] = ()
    scratch: Scratch | None = None
    parts: Sequence[TextIndex] = ()

    def __post_init__(self) -> None:
        room = np.empty if self.scratch is None else self.scratch.empty
        dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.int32
        self.text: Ids = room(len(self.ids) + 1, dtype)
        self.text[0] = self.boundary_id
        self.text[1:] = self.ids
        check_ids(self.text, self.vocab_size)
        size = len(self.text)
        self.widths = {"text": bits_for(self.vocab_size), "places": bits_for(size)}
        packed = {name: -(-size * width // 64) + 1 for name, width in self.widths.items()}
        samples = -(-size // _LINES_EVERY) + 1
        self.sizes = {**packed, "first": self.vocab_size + 1, "line_ends": samples}

    @property
    def header(self) -> dict[str, Any]:
        files = self.files if self._num_line_ends() - self._num_lines() in (0, -1) else []
        names = {"num_tokens": len(self.text), "boundary_id": self.boundary_id}
        return {**names, "files": [list(file) for file in files]}

    def arrays(
        self, memory: int | None = None, num_threads: int | None = None
    ) -> dict[str, Iterable[NDArray[Any]]]:
        options: dict[str, Any] = {"scratch": self.scratch, "num_threads": num_threads}
        places: Iterable[NDArray[Any]]
        if self.parts:
            places = join_arrays(self.text, self.vocab_size, self._sorted_parts(), **options)
        else:
            places = suffix_array(self.text, self.vocab_size, memory=memory, **options)
        starts = range(0, len(self.text), _PACKED_AT_ONCE)
        text = (self.text[start : start + _PACKED_AT_ONCE] for start in starts)
        return {
            "text": _packed(text, self.widths["text"]),
            "places": _packed(places, self.widths["places"]),
            "first": [self._first()],
            "line_ends": [self._line_ends],
        }

    def _sorted_parts(self) -> list[tuple[int, Iterator[Numbers]]]:
        """Where each part begins, and its sorted positions in the whole text."""
        found, begin = list[tuple[int, Iterator[Numbers]]](), 0
        for part in self.parts:
            found.append((begin, _moved(part, begin)))
            begin += part.num_tokens - (begin > 0)  # one boundary token, in front of all
        return found

    def _first(self) -> Numbers:
        first = np.zeros(self.vocab_size + 1, np.int64)
        for start in range(0, len(self.text), _PACKED_AT_ONCE):
            part = self.text[start : start + _PACKED_AT_ONCE]
            first[1:] += np.bincount(part, minlength=self.vocab_size)
        return np.cumsum(first)

    @cached_property
    def _line_ends(self) -> Numbers:
        """The line ends before every sample, and at the end of the text."""
        sums = [0]
        for start in range(0, len(self.text), _LINES_EVERY):
            part = self.text[max(1, start) : start + _LINES_EVERY]  # the token in front ends none
            sums.append(int(self.newlines_V[part].sum(dtype=np.int64)))
        return np.cumsum(sums)

    def _num_line_ends(self) -> int:
        return int(self._line_ends[-1])

    def _num_lines(self) -> int:
        return sum(num_lines for _, num_lines in self.files)


def _packed(parts: Iterable[NDArray[Any]], width: int) -> Iterator[Words]:
    """Pack consecutive parts of any lengths; the words end with one more than is needed."""
    left = np.empty(0, np.int64)
    for part in parts:
        for start in range(0, len(part), _PACKED_AT_ONCE):
            values = np.concatenate([left, part[start : start + _PACKED_AT_ONCE]])
            whole = len(values) // 64 * 64  # as many numbers fill whole words
            words = np.zeros(whole * width // 64 + 1, np.uint64)
            matching.pack(values[:whole], width, words)
            yield words[:-1]
            left = values[whole:]
    words = np.zeros(-(-len(left) * width // 64) + 1, np.uint64)
    matching.pack(left, width, words)
    yield words


def _moved(part: TextIndex, begin: int) -> Iterator[Numbers]:
    """The sorted positions of an index in a text that has its tokens from `begin` on; without its
    boundary token, unless it is at the beginning."""
    for low in range(0, part.num_tokens, _PACKED_AT_ONCE):
        positions = part.positions(low, min(low + _PACKED_AT_ONCE, part.num_tokens))
        yield positions[positions > 0] + begin - 1 if begin else positions


def _consistent(index: TextIndex) -> bool:
    """Check sizes and what is small; loops check the positions that they read."""
    size, first = index.num_tokens, index.first
    return (
        type(size) is int
        and size >= 1
        and len(first) >= 2
        and int(first[0]) == 0
        and int(first[-1]) == size
        and bool((np.diff(first) >= 0).all())
        and type(index.boundary_id) is int
        and 0 <= index.boundary_id < index.vocab_size
        and index.text.shape == (-(-size * index.text_bits // 64) + 1,)
        and index.places.shape == (-(-size * index.place_bits // 64) + 1,)
        and index.line_ends.shape == (-(-size // _LINES_EVERY) + 1,)
    )


def _broken() -> ElmanError:
    return ElmanError(
        "the index is damaged: its places are not in the text",
        "restore its file from a copy, or make it again",
    )
