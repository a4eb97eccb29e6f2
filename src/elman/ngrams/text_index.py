"""An index of a text: find any stretch of tokens in it, however long, in milliseconds.

The text and its suffix array (`suffix_array.py`) are packed to as many bits as their numbers need,
and rare tokens are apart from the others (`matching.py`, which has the compiled loops): a billion
tokens of three million types take 30 bits for each place and 15 for each token. The file is mapped
and opens at once whatever its size; a search reads a few dozen places of it. What follows the most
frequent words is not counted but looked up (`branching.py`).

Format 1 had no rare tokens and no table of what follows.

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
from elman.base.tensor_files import open_tensors
from elman.ngrams import matching
from elman.ngrams.branching import KEPT, LONGEST, Branches, Watch, key, num_branches
from elman.ngrams.mapped import ArrayFile, damaged, write_arrays
from elman.ngrams.matching import RARE_EVERY, Ids, Numbers, Sizes, Words
from elman.ngrams.model import check_ids
from elman.ngrams.scratch import Scratch
from elman.ngrams.suffix_array import DEPTH, join_arrays, suffix_array

INDEX_FILE = "index.safetensors"
FORMAT = 2
_TYPES = {
    **dict.fromkeys(("text", "places"), "U64"),
    **dict.fromkeys(("first", "line_ends", "branches", "branch_counts"), "I64"),
    "branch_tokens": "I32",
}
"""The packed arrays first, in the order of their marks. Format 1 does not have the branches."""
_MOST_RARE = 1 / 16
"""Share of the tokens that may be rare: reading one takes three times as long."""
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
    """The tokens, packed (see `matching`)."""
    places: Words
    """The position of each suffix in sorted order, packed."""
    first: Numbers
    """(V + 1,) the number of suffixes that begin with a smaller token."""
    line_ends: Numbers
    """The number of line ends before every 16,384th token."""
    branches: Numbers
    branch_counts: Numbers
    branch_tokens: NDArray[np.int32]
    """What follows frequent stretches: see `branching.Branches`."""
    num_tokens: int
    """With the boundary token in front."""
    boundary_id: int
    token_bits: int
    """The bits of a token that is not rare."""
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
        return sum(getattr(self, name).nbytes for name in _TYPES)

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

    def most_frequent(
        self, low: int, high: int, depth: int, k: int
    ) -> tuple[Numbers, Numbers, int]:
        """The first `k` of `continuations`, or more, and the number of all."""
        at = int(np.searchsorted(self.branches, key(low, depth)))
        found = at < len(self.branches) and self.branches[at] == key(low, depth)
        # An empty range is where the next stretch begins; longer ones have keys of others.
        if found and low < high and 0 < depth <= LONGEST and k <= KEPT:
            number, *counts = self.branch_counts[at].tolist()
            tokens = self.branch_tokens[at].astype(np.int64)
            kept = min(number, len(tokens))
            return tokens[:kept], np.array(counts[:kept]), number
        tokens, numbers = self.continuations(low, high, depth)
        return tokens, numbers, len(tokens)

    def num_followed(self, low: int, high: int, depth: int) -> int:
        """How many of a range of suffixes have a token after their first `depth`."""
        # Only the suffix at the end of the text may have none; it comes first.
        ends = low < high and int(self.positions(low, low + 1)[0]) + depth == self.num_tokens
        return high - low - ends

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
        places = np.zeros(max(0, high - low), np.int64)
        self.run(matching.read_places, low, places)
        return places

    def tokens(self, position: int, number: int) -> Numbers:
        """At most `number` tokens of the text from a position on."""
        start = max(0, position)
        tokens = np.zeros(max(0, min(position + number, self.num_tokens) - start), np.int64)
        self.run(matching.read_tokens, start, tokens)
        return tokens

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

    def run(self, loop: Callable[..., None], *arguments: Any) -> None:
        """Call a loop of `matching` on the index."""
        self.check_unchanged()
        before = (self.text, self.places, self.first, tuple(self._sizes))
        try:
            if self.file is None:
                loop(*before, None, *arguments)
            else:
                self.file.run(loop, before, arguments)
        except IndexError as error:
            raise _broken() from error

    @cached_property
    def _sizes(self) -> Sizes:
        return _sizes(self.token_bits, self.first)


def _sizes(token_bits: int, first: Numbers) -> Sizes:
    vocab_size, size = len(first) - 1, int(first[-1])
    escape = (1 << token_bits) - (vocab_size > 1 << token_bits)
    num_rare = size - int(first[min(escape, vocab_size)])
    rare_start, rare_bits = _num_words(size, token_bits), bits_for(max(1, vocab_size - escape))
    return Sizes(
        size=size,
        token_bits=token_bits,
        place_bits=bits_for(size),
        escape=escape,
        num_rare=num_rare,
        rare_start=rare_start,
        rare_bits=rare_bits,
        before_start=rare_start + _num_words(num_rare, rare_bits),
        before_bits=bits_for(num_rare + 1),
    )


def _smallest(first: Numbers) -> Sizes:
    """The sizes with which the text takes least space, where not too many of its tokens are rare:
    they depend on how often each token occurs, so joined indexes have those of the whole."""
    every = [_sizes(bits, first) for bits in range(1, bits_for(len(first) - 1) + 1)]
    few = [sizes for sizes in every if sizes.num_rare <= _MOST_RARE * sizes.size]
    return min(few, key=_text_words)


def _text_words(sizes: Sizes) -> int:
    return sizes.before_start + _num_words(-(-sizes.size // RARE_EVERY), sizes.before_bits)


def _num_words(number: int, width: int) -> int:
    """The words of packed numbers. There is one more than is needed, and they are a multiple of 64
    bytes: such arrays come first in a file, and `branches` is known when `places` is written."""
    return -(-(number * width // 64 + 2) // 8) * 8


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
    `parts` are indexes of the text's parts, if there are: they are merged.
    """
    plan = _Plan(ids, vocab_size, boundary_id, newlines_V, files, scratch, parts)
    made = plan.arrays(memory, num_threads)
    arrays = {name: (_TYPES[name], plan.shapes[name], parts) for name, parts in made.items()}
    write_arrays(path, {"format": FORMAT, **plan.header, **(extra or {})}, arrays)


def load_index(path: Path) -> tuple[TextIndex, dict[str, Any]]:
    """Open an index; also return its whole header."""
    with open_tensors(path) as opened:
        is_first = opened.header.get("format") == 1
    absent = Branches._fields if is_first else ()
    file = ArrayFile(path, _TYPES, 1 if is_first else FORMAT, {}, absent=absent)
    header = file.header
    names = ("num_tokens", "boundary_id", "files")
    try:
        about: dict[str, Any] = {name: header[name] for name in names}
        about["token_bits"] = bits_for(len(file.arrays["first"]) - 1)
        if not is_first:
            about["token_bits"] = header["token_bits"]
        index = TextIndex(**dict[str, Any](file.arrays), **about, file=file)
        index.files = [(str(name), int(lines)) for name, lines in index.files]
        for name in ("first", "line_ends", *Branches._fields):
            file.verify(name)
        whole = _consistent(index, is_first)
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
        self.first = self._first()
        self.sizes = _smallest(self.first)
        number = num_branches(size)
        self.shapes = {
            "text": [_text_words(self.sizes)],
            "places": [_num_words(size, self.sizes.place_bits)],
            "first": [self.vocab_size + 1],
            "line_ends": [-(-size // _LINES_EVERY) + 1],
            "branches": [number],
            "branch_counts": [number, 1 + KEPT],
            "branch_tokens": [number, KEPT],
        }

    @property
    def header(self) -> dict[str, Any]:
        files = self.files if self._num_line_ends() - self._num_lines() in (0, -1) else []
        names = {"num_tokens": len(self.text), "boundary_id": self.boundary_id}
        names["token_bits"] = self.sizes.token_bits
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
        watch = Watch(self.text)
        return {
            "text": self._packed_text(),
            "places": _packed(watch.passing(places), len(self.text), self.sizes.place_bits),
            "first": [self.first],
            "line_ends": [self._line_ends],
            **{name: _later(watch, name) for name in Branches._fields},
        }

    def _text_parts(self) -> Iterator[Ids]:
        for start in range(0, len(self.text), _PACKED_AT_ONCE):
            yield self.text[start : start + _PACKED_AT_ONCE]

    def _packed_text(self) -> Iterator[Words]:
        sizes, escape = self.sizes, self.sizes.escape
        codes = (np.minimum(part, escape) for part in self._text_parts())
        rare = (part[part >= escape] - escape for part in self._text_parts())
        yield from _packed(codes, sizes.size, sizes.token_bits)
        yield from _packed(rare, sizes.num_rare, sizes.rare_bits)
        samples = -(-sizes.size // RARE_EVERY)
        yield from _packed(self._rare_before(), samples, sizes.before_bits)

    def _rare_before(self) -> Iterator[Numbers]:
        before = 0
        for part in self._text_parts():
            sums = np.add.reduceat(part >= self.sizes.escape, range(0, len(part), RARE_EVERY))
            ends = before + np.cumsum(sums)
            yield np.concatenate([[before], ends[:-1]])
            before = int(ends[-1])

    def _sorted_parts(self) -> list[tuple[int, Iterator[Numbers]]]:
        """Where each part begins, and its sorted positions in the whole text."""
        found, begin = list[tuple[int, Iterator[Numbers]]](), 0
        for part in self.parts:
            found.append((begin, _moved(part, begin)))
            begin += part.num_tokens - (begin > 0)  # one boundary token, in front of all
        return found

    def _first(self) -> Numbers:
        first = np.zeros(self.vocab_size + 1, np.int64)
        for part in self._text_parts():
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


def _packed(parts: Iterable[NDArray[Any]], number: int, width: int) -> Iterator[Words]:
    """Pack consecutive parts of any lengths, `number` numbers in all."""
    left, num_words = np.empty(0, np.int64), _num_words(number, width)
    for part in parts:
        for start in range(0, len(part), _PACKED_AT_ONCE):
            values = np.concatenate([left, part[start : start + _PACKED_AT_ONCE]])
            whole = len(values) // 64 * 64  # as many numbers fill whole words
            words = np.zeros(whole * width // 64 + 1, np.uint64)
            matching.pack(values[:whole], width, words)
            yield words[:-1]
            num_words -= len(words) - 1
            left = values[whole:]
    words = np.zeros(num_words, np.uint64)
    matching.pack(left, width, words)
    yield words


def _moved(part: TextIndex, begin: int) -> Iterator[Numbers]:
    """The sorted positions of an index in a text that has its tokens from `begin` on; without its
    boundary token, unless it is at the beginning."""
    for low in range(0, part.num_tokens, _PACKED_AT_ONCE):
        positions = part.positions(low, min(low + _PACKED_AT_ONCE, part.num_tokens))
        yield positions[positions > 0] + begin - 1 if begin else positions


def _later(watch: Watch, name: str) -> Iterator[NDArray[Any]]:
    """An array of the table that `watch` has when the places are written."""
    yield getattr(watch.table(), name)


def _consistent(index: TextIndex, is_first: bool) -> bool:
    """Check sizes and what is small; loops check the positions that they read."""
    size, first = index.num_tokens, index.first
    sound = (
        type(size) is int
        and size >= 1
        and len(first) >= 2
        and int(first[0]) == 0
        and int(first[-1]) == size
        and bool((np.diff(first) >= 0).all())
        and type(index.boundary_id) is int
        and 0 <= index.boundary_id < index.vocab_size
        and type(index.token_bits) is int
        and 1 <= index.token_bits <= bits_for(index.vocab_size)
        and index.line_ends.shape == (-(-size // _LINES_EVERY) + 1,)
    )
    if not sound:
        return False
    sizes = _sizes(index.token_bits, first)
    words = [_text_words(sizes), _num_words(size, sizes.place_bits)]
    if is_first:
        words = [-(-size * bits // 64) + 1 for bits in (sizes.token_bits, sizes.place_bits)]
    if [index.text.shape, index.places.shape] != [(number,) for number in words]:
        return False
    if is_first:
        return True
    number, branches = num_branches(size), index.branches
    tokens, counts = index.branch_tokens, index.branch_counts
    return (
        branches.shape == (number,)
        and counts.shape == (number, 1 + KEPT)
        and tokens.shape == (number, KEPT)
        and bool((np.diff(branches) >= 0).all() and (counts >= 0).all())
        and 0 <= int(tokens.min()) <= int(tokens.max()) < index.vocab_size
    )


def _broken() -> ElmanError:
    return ElmanError(
        "the index is damaged: its places are not in the text",
        "restore its file from a copy, or make it again",
    )
