"""Writing a model as an ARPA file, for KenLM, SRILM, Kaldi and whoever else reads the format.

The boundary token is written as `<s>` where it begins an n-gram and as `</s>` where it ends one.
Tokens of character and sub-word models may hold white space, which the format cannot; it is spelled
as in `<0x20>`. Logarithms are to base 10, and -99 stands for that of zero, as is the custom.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.base.files import replacing
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compiled import Scalar, compiled, in_order, inlined
from elman.ngrams.interpolation import Floats
from elman.ngrams.trie import Array

Bytes = NDArray[np.uint8]

_BUFFER_SIZE = 1 << 22
# N-grams that one thread writes at a time.
_STRETCH = 1 << 17
# A number, its tab or line end: sign, integer digits, point, seven decimals, and room to spare.
_NUMBER_SIZE = 48


def write_arpa(
    path: Path,
    model: BackoffModel,
    spellings: Sequence[str],
    *,
    unknown_id: int | None = None,
    num_threads: int | None = None,
) -> None:
    """Write `model` to `path`, compressed where the name ends in .gz.

    `spellings` are the tokens' texts by id. Single tokens of probability zero are left out.
    """
    words = [_spelling(spelling) for spelling in spellings]
    if unknown_id is not None:
        words[unknown_id] = b"<unk>"
    compress = path.suffix == ".gz"
    with replacing(path) as temporary, temporary.open("wb") as output:
        for text in _sections(model, words, unknown_id, num_threads, compress):
            output.write(text)


def _spelling(token: str) -> bytes:
    """The token without white space in it."""
    escaped = re.sub(
        r"[\s\x00]", lambda found: "".join(f"<0x{b:02X}>" for b in found[0].encode()), token
    )
    # The marks of the format itself; an ordinary token that looks like one must not become it.
    if escaped in ("<s>", "</s>", "<unk>", "<UNK>", ""):
        escaped = f"<0x{ord(escaped[0]):02X}>{escaped[1:]}" if escaped else "<0x>"
    return escaped.encode()


def _sections(
    model: BackoffModel,
    words: list[bytes],
    unknown_id: int | None,
    num_threads: int | None,
    compress: bool,
) -> Iterator[bytes]:
    def packed(text: bytes) -> bytes:
        return gzip.compress(text, 6) if compress else text

    unigrams = _unigrams(model, words, unknown_id)
    sizes = [len(unigrams), *model.num_ngrams[1:]]
    head = [f"ngram {n}={size}" for n, size in enumerate(sizes, start=1)]
    yield packed("\n".join(["\\data\\", *head, "", "\\1-grams:", ""]).encode() + b"".join(unigrams))
    spelled = [*words, b"<s>", b"</s>"]
    starts = np.cumsum([0, *(len(word) for word in spelled)])
    letters = np.frombuffer(b"".join(spelled), np.uint8)
    longest = max(len(word) for word in spelled)

    for length in range(2, model.order + 1):
        first, end = model.level_starts[length - 1 : length + 1]
        yield packed(f"\n\\{length}-grams:\n".encode())
        line_size = 2 * _NUMBER_SIZE + length * (longest + 1)

        def lines(start: int, length: int = length, end: int = end, size: int = line_size) -> bytes:
            stop = min(start + _STRETCH, end)
            found = _lines(model, letters, starts, length, start, stop, size)
            return packed(b"".join(found))

        yield from in_order(lines, range(first, end, _STRETCH), num_threads)
    yield packed(b"\n\\end\\\n")


def _unigrams(model: BackoffModel, words: list[bytes], unknown_id: int | None) -> list[bytes]:
    """Lines of the single tokens, <unk>, <s> and </s> in front."""
    boundary_id = model.boundary_id
    logprobs = (model.logprob[: model.vocab_size] / np.float32(math.log(10))).tolist()
    weights = (model.backoff[: model.vocab_size] / np.float32(math.log(10))).tolist()

    def line(logprob: float, word: bytes, weight: float) -> bytes:
        numbers = [
            f"{max(-99.0, value):.7f}".rstrip("0").rstrip(".") for value in (logprob, weight)
        ]
        numbers = ["0" if number == "-0" else number for number in numbers]
        tail = b"\t" + numbers[1].encode() if model.order > 1 else b""
        return numbers[0].encode() + b"\t" + word + tail + b"\n"

    def weight(i: int) -> float:
        return weights[i] if weights else 0.0

    lines = []
    if unknown_id is not None and logprobs[unknown_id] > -math.inf:
        lines.append(line(logprobs[unknown_id], b"<unk>", weight(unknown_id)))
    lines.append(line(0.0, b"<s>", weight(boundary_id)))
    lines.append(line(logprobs[boundary_id], b"</s>", 0.0))
    for i, word in enumerate(words):
        if i not in (unknown_id, boundary_id) and logprobs[i] > -math.inf:
            lines.append(line(logprobs[i], word, weight(i)))
    return lines


def _lines(
    model: BackoffModel,
    letters: Bytes,
    starts: NDArray[np.int64],
    length: int,
    start: int,
    stop: int,
    line_size: int,
) -> Iterator[bytes]:
    """The text of n-grams `start` to before `stop`, all of one length."""
    first_child, leaves_f = model.first_child, model.leaves.view(np.float32)
    path = np.empty(length, np.int64)
    path[-1] = start
    for depth in range(length - 2, -1, -1):
        path[depth] = np.searchsorted(first_child, path[depth + 1], side="right") - 1
    buffer = np.empty(_BUFFER_SIZE + line_size, np.uint8)
    prefix = np.empty(line_size, np.uint8)
    while start < stop:
        start, size = _format(
            model.contexts, model.contexts.view(np.float32), leaves_f, model.words,
            model.boundary_id, letters, starts, path, start, stop, prefix, buffer, _BUFFER_SIZE,
        )  # fmt: skip
        yield buffer[:size].tobytes()


@inlined
def _put_number(value: Scalar, buffer: Bytes, at: Scalar) -> Scalar:
    """Write value / ln 10 with seven decimals, without needless zeros; return where it ends."""
    value = max(value / 2.302585092994046, -99.0)
    if value < 0:
        buffer[at] = 45  # -
        at += 1
        value = -value
    scaled = np.int64(value * 1e7 + 0.5)
    whole, decimals = scaled // 10_000_000, scaled % 10_000_000
    num_digits, power = 1, 10
    while whole >= power:
        num_digits += 1
        power *= 10
    for i in range(num_digits - 1, -1, -1):
        buffer[at + i] = 48 + whole % 10
        whole //= 10
    at += num_digits
    if decimals:
        num_decimals = 7
        while decimals % 10 == 0:
            decimals //= 10
            num_decimals -= 1
        buffer[at] = 46  # .
        for i in range(num_decimals, 0, -1):
            buffer[at + i] = 48 + decimals % 10
            decimals //= 10
        at += num_decimals + 1
    return at


@compiled
def _format(
    contexts_i: Array,
    contexts_f: Floats,
    leaves_f: Floats,
    words: Array,
    boundary_id: int,
    letters: Bytes,
    starts: NDArray[np.int64],
    path: NDArray[np.int64],
    start: Scalar,
    stop: Scalar,
    prefix: Bytes,
    buffer: Bytes,
    limit: int,
) -> tuple[Scalar, Scalar]:
    """Write lines until `stop` or a full buffer; `path` is the chain of contexts at `start`.

    The spellings `starts[V]` and `starts[V + 1]` are those of the beginning and end of a line.
    """
    num_contexts = len(contexts_i) - 1
    vocab_size = len(starts) - 3
    length = len(path)
    at, prefix_size = 0, -1
    ngram = start
    while ngram < stop and at < limit:
        path[length - 1] = ngram
        changed = prefix_size < 0
        for depth in range(length - 2, -1, -1):
            while contexts_i[path[depth] + 1, 0] <= path[depth + 1]:
                path[depth] += 1
                changed = True
        if changed:
            prefix_size = 0
            for depth in range(length - 1):
                word = words[path[depth]]
                word = vocab_size if word == boundary_id else word
                for i in range(starts[word], starts[word + 1]):
                    prefix[prefix_size] = letters[i]
                    prefix_size += 1
                prefix[prefix_size] = 32
                prefix_size += 1
        if ngram < num_contexts:
            logprob = contexts_f[ngram, 2]
        else:
            logprob = leaves_f[ngram - num_contexts, 1]
        at = _put_number(logprob, buffer, at)
        buffer[at] = 9
        at += 1
        for i in range(prefix_size):
            buffer[at + i] = prefix[i]
        at += prefix_size
        word = words[ngram]
        word = vocab_size + 1 if word == boundary_id else word
        for i in range(starts[word], starts[word + 1]):
            buffer[at] = letters[i]
            at += 1
        if ngram < num_contexts:
            buffer[at] = 9
            at = _put_number(contexts_f[ngram, 3], buffer, at + 1)
        buffer[at] = 10
        at += 1
        ngram += 1
    return ngram, at
