"""Write a model as an ARPA file, for KenLM, SRILM, Kaldi and others.

The boundary token is written as `<s>` at the beginning of an n-gram and as `</s>` at its end. White
space inside tokens is escaped as in `<0x20>`; SentencePiece writes it as "▁", as other tools do.
Logarithms are to base 10; -99 stands for log 0, as usual.
"""

from __future__ import annotations

import gzip
import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from elman.base.files import replacing
from elman.base.shared_file import SharedFile
from elman.base.threads import default_threads, in_threads
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compiled import Scalar, compiled, inlined
from elman.ngrams.interpolation import Floats
from elman.ngrams.trie import Array
from elman.ngrams.vocabulary import Spellings

Bytes = NDArray[np.uint8]
Text = bytes | memoryview

MARKS = {"<s>", "</s>", "<unk>", "<UNK>"}
"""Special words of the format; ordinary tokens that look like them are escaped."""

_SPACE = re.compile(r"[\s\x00]")
_BUFFER_SIZE = 1 << 21
# N-grams in one thread's piece of work.
_STRETCH = 1 << 15
# Least bytes of a line with two words: which files are large.
_LINE_SIZE = 16
# Upper limit of the bytes of a number with its tab or line end.
_NUMBER_SIZE = 48
_SLOT = 16
_RELEASED = 64
"""Pieces of work after which the pages of the mapped model are released."""
_PATIENCE = 1.0
"""Seconds to wait for the part of another thread."""
_DIGITS = np.frombuffer(b"".join(b"%04d" % i for i in range(10_000)), np.uint8).reshape(-1, 4)


def write_arpa(
    path: Path,
    model: BackoffModel,
    spellings: Sequence[str] | Spellings,
    *,
    unknown_id: int | None = None,
    num_threads: int | None = None,
) -> None:
    """Write `model` to `path`, compressed if the name ends in .gz.

    `spellings` are the tokens' texts by id, or distinct words to write as they are. Single tokens
    of probability zero are omitted.
    """
    if isinstance(spellings, Spellings):
        words = spellings
    else:
        words = spelled(words_of(spellings, unknown_id))
    compress = path.suffix.lower() == ".gz"
    num_threads = num_threads or default_threads()
    # Not durable: a file truncated by a power cut lacks its last line, and readers notice.
    with replacing(path, durable=False) as temporary:
        expected = 0 if compress else _LINE_SIZE * sum(model.num_ngrams)
        with SharedFile(temporary, expected, num_threads) as output:
            _write(output, model, words, unknown_id, num_threads, compress)


def words_of(spellings: Sequence[str], unknown_id: int | None = None) -> list[bytes]:
    """Return a distinct word of the file for each token."""
    if _SPACE.search("".join(spellings)):
        words = [_spelling(spelling) for spelling in spellings]
    else:  # all at once, but for the few that may be escaped
        words = "\n".join(spellings).encode().split(b"\n") if spellings else []
        for i in [i for i, text in enumerate(spellings) if text in MARKS or not text]:
            words[i] = _spelling(spellings[i])
    if unknown_id is not None:
        words[unknown_id] = b"<unk>"
    if len(taken := set(words)) < len(words):
        seen: set[bytes] = set()
        for i, word in enumerate(words):
            if word in seen:
                while word in taken:
                    word += b"<0x>"
                words[i] = word
                taken.add(word)
            seen.add(word)
    return words


def has_space(words: Spellings) -> bool:
    """Whether a word has white space or is empty, so that it cannot be written as it is."""
    text = words.letters[: words.starts[-1]].tobytes().decode()
    return bool((np.diff(words.starts) == 0).any()) or _SPACE.search(text) is not None


def spelled(words: Sequence[bytes]) -> Spellings:
    starts = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=starts[1:])
    return Spellings(np.frombuffer(b"".join(words), np.uint8), starts)


def _spelling(token: str) -> bytes:
    """Escape white space and special words."""
    escaped = token
    if _SPACE.search(token):
        escaped = _SPACE.sub(
            lambda found: "".join(f"<0x{b:02X}>" for b in found[0].encode()), token
        )
    if escaped in MARKS or not escaped:
        escaped = f"<0x{ord(escaped[0]):02X}>{escaped[1:]}" if escaped else "<0x>"
    return escaped.encode()


def _write(
    output: SharedFile,
    model: BackoffModel,
    words: Spellings,
    unknown_id: int | None,
    num_threads: int,
    compress: bool,
) -> None:
    def packed(text: Text) -> Text:
        return gzip.compress(text, 6) if compress else text

    spelled = _Spelled(words)
    unigrams = _Unigrams(model, spelled, unknown_id)
    sizes = [len(unigrams.words), *model.num_ngrams[1:]]
    head = [f"ngram {n}={size}" for n, size in enumerate(sizes, start=1)]
    parts = _InOrder(output, num_threads)
    parts.add(0, [packed("\n".join(["\\data\\", *head, ""]).encode())])
    pieces = []
    for length, (first, size) in enumerate(zip(model.level_starts, sizes, strict=False), start=1):
        starts = range(0, size, _STRETCH) or [0]  # pruning may leave none
        pieces += [(length, first, start, min(start + _STRETCH, size)) for start in starts]

    def write(number: int) -> None:
        length, first, start, stop = pieces[number]
        texts: list[Text] = []
        if start == 0:
            texts.append(packed(f"\n\\{length}-grams:\n".encode()))
        if length == 1:
            texts.append(packed(unigrams.lines(start, stop)))
        else:
            lines = _lines(model, spelled, length, first + start, first + stop)
            texts += [packed(text) for text in lines]
        for text in parts.add(number + 1, texts):
            if isinstance(text, memoryview):  # it is written: use its memory again
                spelled.free.append(text.obj.base)  # type: ignore[attr-defined]
        model.room.relieve()
        if number % _RELEASED == 0 and model.file is not None:
            model.file.release()

    in_threads(write, range(len(pieces)), num_threads)
    parts.add(len(pieces) + 1, [packed(b"\n\\end\\\n")])


class _InOrder:
    """Writes the parts of a file, of which each begins where the one before it ends.

    A part that comes before its place is known waits here. Its thread waits only if many do.
    """

    def __init__(self, output: SharedFile, most: int) -> None:
        self._output, self._most = output, most
        self._waiting: dict[int, list[Text]] = {}
        self._next = self._end = 0
        self._changed = Condition()

    def add(self, number: int, texts: list[Text]) -> list[Text]:
        """Write part `number`, or have it wait; return texts that are written."""
        placed: list[tuple[int, Text]] = []
        with self._changed:
            self._waiting[number] = texts
            while self._next in self._waiting:
                for text in self._waiting.pop(self._next):
                    placed.append((self._end, text))
                    self._end += len(text)
                self._next += 1
            if placed:
                self._changed.notify_all()
            # Not for ever: an interrupt may have come before the part that all wait for.
            self._changed.wait_for(lambda: len(self._waiting) <= self._most, _PATIENCE)
        for place, text in placed:
            self._output.put(place, text)
        return [text for _, text in placed]


class _Unigrams:
    """The lines of single tokens, <unk>, <s> and </s> first."""

    def __init__(self, model: BackoffModel, spelled: _Spelled, unknown_id: int | None) -> None:
        boundary_id, size = model.boundary_id, model.vocab_size
        logprob = model.unigrams
        log10 = np.maximum(logprob / math.log(10), -99.0)
        weights = np.zeros(size)
        if model.order > 1:
            weights = np.maximum(model.backoff[:size] / math.log(10), -99.0) + 0.0  # not -0
        kept = logprob > -np.inf
        front = [] if unknown_id is None or not kept[unknown_id] else [unknown_id]
        kept[[boundary_id, *front]] = False
        rest = np.flatnonzero(kept)
        begin, end = np.array([0.0]), np.array([log10[boundary_id]])
        self._columns = (
            np.concatenate([log10[front], begin, end, log10[rest]]),
            np.concatenate([weights[front], weights[[boundary_id]], [0.0], weights[rest]]),
        )
        self.words = np.concatenate([np.array(front, np.int64), [size, size + 1], rest])
        self._spelled, self._weighted = spelled, model.order > 1

    def lines(self, start: int, stop: int) -> bytes:
        words, starts = self.words[start:stop], self._spelled.starts
        columns = [_decimals(column[start:stop]) for column in self._columns]
        room = int((starts[words + 1] - starts[words]).sum()) + len(words) * 2 * _NUMBER_SIZE
        text = np.empty(room, np.uint8)  # what is not written takes no memory
        used = _format_unigrams(
            *columns[0], *columns[1], words, self._spelled.letters, starts, self._weighted, text
        )
        return text[:used].tobytes()


def _decimals(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return numbers in units of the seventh decimal, as `%.7f` rounds them, and their signs."""
    scaled = np.abs(values.astype(np.float64)) * 1e7
    found = np.rint(scaled).astype(np.int64)
    # Near a half the product may be on the other side.
    for i in np.flatnonzero(np.abs(scaled - np.floor(scaled) - 0.5) < 1e-3).tolist():
        found[i] = int(f"{abs(values[i]):.7f}".replace(".", ""))
    return found, np.signbit(values)


def _lines(
    model: BackoffModel, spelled: _Spelled, length: int, start: int, stop: int
) -> Iterator[memoryview]:
    """Yield the lines of n-grams `start` to `stop` - 1, all of one length."""
    path = np.empty(length, np.int64)
    path[-1] = start
    for depth in range(length - 2, -1, -1):
        # Not np.searchsorted: it copies the whole column for every piece of work.
        path[depth] = bisect_right(model.first_child, path[depth + 1]) - 1
    line_size = 2 * _NUMBER_SIZE + length * (spelled.longest + 1) + _SLOT
    prefix, begins = np.empty(line_size, np.uint8), np.zeros(length, np.uint64)
    while start < stop:
        buffer = spelled.buffer(_BUFFER_SIZE + line_size)
        start, size = _format(
            model.contexts, model.contexts.view(np.float32), model.leaves.view(np.float32),
            model.words, model.boundary_id, spelled.slots, spelled.letters, spelled.starts,
            _DIGITS, path, start, stop, prefix, begins, buffer, _BUFFER_SIZE,
        )  # fmt: skip
        yield buffer[:size].data


class _Spelled:
    """The bytes of the words, short ones in fixed slots: one memory access instead of three.

    The last byte of a slot is the word's size, or the slot's size if the word does not fit.
    """

    def __init__(self, words: Spellings) -> None:
        """`words` are by id; <s> and </s> follow."""
        marks = np.frombuffer(b"<s></s>", np.uint8)
        ends = words.starts[-1] + np.array([3, 7])
        self.letters = np.concatenate([words.letters[: words.starts[-1]], marks])
        self.starts = np.concatenate([words.starts, ends])
        self.longest = int(np.diff(self.starts).max())
        self.slots = np.empty((len(self.starts) - 1, _SLOT), np.uint8)
        _fill(self.letters, self.starts, self.slots)
        self.free: deque[Bytes] = deque()
        """Buffers to use again: new memory costs as much time as formatting."""

    def buffer(self, size: int) -> Bytes:
        with suppress(IndexError):
            if len(found := self.free.pop()) >= size:
                return found
        return np.empty(size, np.uint8)


@compiled
def _fill(letters: Bytes, starts: NDArray[np.int64], slots: Bytes) -> None:
    for word in range(len(slots)):
        first, size = starts[word], starts[word + 1] - starts[word]
        if size < _SLOT:
            slots[word] = 32
            for i in range(size):
                slots[word, i] = letters[first + i]
            slots[word, _SLOT - 1] = size
        else:
            slots[word] = _SLOT


@compiled
def _format_unigrams(
    logprobs: NDArray[np.int64], are_negative: NDArray[np.bool_], weights: NDArray[np.int64],
    weights_negative: NDArray[np.bool_], words: NDArray[np.int64], letters: Bytes,
    starts: NDArray[np.int64], weighted: bool, text: Bytes,
) -> int:  # fmt: skip
    """Write a line for each word, its numbers with seven decimals each; return the size."""
    at = 0
    for row in range(len(words)):
        for column in range(2 if weighted else 1):
            number = logprobs[row] if column == 0 else weights[row]
            if are_negative[row] if column == 0 else weights_negative[row]:
                text[at] = 45  # -
                at += 1
            size, power = 8, np.int64(10**8)
            while power <= number:
                size += 1
                power *= 10
            for place in range(size, -1, -1):
                if place == size - 7:
                    text[at + place] = 46  # .
                else:
                    text[at + place] = 48 + number % 10
                    number //= 10
            at += size + 1
            if column == 0:
                text[at] = 9
                at += 1
                for i in range(starts[words[row]], starts[words[row] + 1]):
                    text[at] = letters[i]
                    at += 1
                if weighted:
                    text[at] = 9
                    at += 1
        text[at] = 10
        at += 1
    return at


# Indices are unsigned in the loops below: numba tests signed ones for being negative at each use.
# Copies have a fixed size, which compiles to one instruction, and overshoot; the excess is
# overwritten next. Both together made writing three times as fast, but not when the copy of a word
# was a separate function, inlined or not.
_U = np.uint64


@inlined
def _put_number(value: Scalar, digits: Bytes, buffer: Bytes, at: Scalar) -> Scalar:
    """Write value / ln 10, clipped to +-99, with seven decimals, or none if they are zeros."""
    value = max(value * 0.4342944819032518, -99.0)
    if value < 0:
        buffer[at] = 45  # -
        at += _U(1)
        value = -value
    elif value > 99:
        value = 99.0
    scaled = np.uint32(value * 1e7 + 0.5)
    whole = scaled // np.uint32(10_000_000)
    decimals = scaled - whole * np.uint32(10_000_000)
    if whole >= np.uint32(10):
        tens = whole // np.uint32(10)
        buffer[at] = np.uint32(48) + tens
        at += _U(1)
        whole -= tens * np.uint32(10)
    buffer[at] = np.uint32(48) + whole
    if decimals == np.uint32(0):
        return at + _U(1)
    high = decimals // np.uint32(10_000)
    low = decimals - high * np.uint32(10_000)
    for i in range(_U(4)):
        buffer[at + _U(1) + i] = digits[high, i]
    buffer[at + _U(1)] = 46  # . overwrites the first of the eight digits, a zero
    for i in range(_U(4)):
        buffer[at + _U(5) + i] = digits[low, i]
    return at + _U(9)


@compiled
def _format(
    contexts_i: Array, contexts_f: Floats, leaves_f: Floats, words: Array, boundary_id: int,
    slots: Bytes, letters: Bytes, starts: NDArray[np.int64], digits: Bytes, path: NDArray[np.int64],
    start: Scalar, stop: Scalar, prefix: Bytes, begins: NDArray[np.uint64], buffer: Bytes,
    limit: int,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Write lines until `stop` or a full buffer; `path` is the chain of contexts at `start`.

    The last two spellings are `<s>` and `</s>`. `prefix` keeps the words of the context, because
    neighbouring n-grams share the first ones; each begins at its `begins`.
    """
    num_contexts = len(contexts_i) - 1
    vocab_size = len(slots) - 2
    length = len(path)
    at, prefix_size = _U(0), _U(0)
    ngram = start
    while ngram < stop and at < _U(limit):
        path[length - 1] = ngram
        changed = length - 1
        for depth in range(length - 2, -1, -1):
            if contexts_i[path[depth] + 1, 0] > path[depth + 1]:
                break
            while contexts_i[path[depth] + 1, 0] <= path[depth + 1]:
                path[depth] += 1
            changed = depth
        if ngram == start:
            changed = 0
        if changed < length - 1:
            prefix_size = begins[changed]
        for depth in range(changed, length - 1):
            begins[depth] = prefix_size
            word = _U(words[path[depth]])
            if word == _U(boundary_id):
                word = _U(vocab_size)
            size = _U(slots[word, 15])
            if size <= _U(15):
                for i in range(_U(15)):
                    prefix[prefix_size + i] = slots[word, i]
            else:
                first = _U(starts[word])
                size = _U(starts[word + _U(1)]) - first
                for i in range(size):
                    prefix[prefix_size + i] = letters[first + i]
            prefix_size += size
            prefix[prefix_size] = 32
            prefix_size += _U(1)
        if ngram < num_contexts:
            logprob = contexts_f[ngram, 2]
        else:
            logprob = leaves_f[ngram - num_contexts, 1]
        at = _put_number(logprob, digits, buffer, at)
        buffer[at] = 9
        at += _U(1)
        copied = _U(0)
        while copied < prefix_size:
            for i in range(_U(16)):
                buffer[at + copied + i] = prefix[copied + i]
            copied += _U(16)
        at += prefix_size
        word = _U(words[ngram])
        if word == _U(boundary_id):
            word = _U(vocab_size + 1)
        size = _U(slots[word, 15])
        if size <= _U(15):
            for i in range(_U(15)):
                buffer[at + i] = slots[word, i]
        else:
            first = _U(starts[word])
            size = _U(starts[word + _U(1)]) - first
            for i in range(size):
                buffer[at + i] = letters[first + i]
        at += size
        if ngram < num_contexts:
            buffer[at] = 9
            at = _put_number(contexts_f[ngram, 3], digits, buffer, at + _U(1))
        buffer[at] = 10
        at += _U(1)
        ngram += 1
    return ngram, at
