"""Compiled loops over a `TextIndex`: pack its arrays, look tokens up, follow the longest match.

Numbers are packed: number i has the bits from i * width on in an array of 64-bit words, which ends
with a word more than is needed. All loops that read an index begin with the same five arguments:
its text and its places, where the suffixes of each first token begin, sizes, and marks as in
`walking`. Arrays are not in a tuple with the sizes: taking them out of it counts references, which
made a search in a small index seven times as slow.

Most tokens of a text are among few types. An id below `escape` is stored as it is, in few bits. Any
other is `escape` there, and the token itself is in a list of the rare ones; the number of rare
tokens before every 128th token says where. The array `text` has the tokens, then that list, then
those numbers.

A row is a place in the sorted order. Suffixes that begin with the same tokens are a range of rows,
low to high - 1. An index may be damaged, so every position that is read from it is checked.

T tokens of a text, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import Scalar, compiled, inlined
from elman.ngrams.suffix_array import DEPTH

Ids = NDArray[Any]
Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Marks = tuple[NDArray[np.uint8], ...] | None
Range = tuple[Scalar, Scalar]
Plain = tuple[int, ...]
"""`Sizes` as the loops get them."""
_TEXT, _PLACES = range(2)
"""Marks of the arrays."""
RARE_EVERY = 1 << 7
"""Tokens from one number of rare tokens to the next."""
_U = np.uint64
_BLOCK = _U(13)  # 64 KiB of 64-bit words


class Sizes(NamedTuple):
    """The numbers of things, and the bits that they are packed in."""

    size: int
    """Tokens of the text."""
    token_bits: int
    """Of a token, if it is not rare."""
    place_bits: int
    escape: int
    """The id from which on tokens are rare; more than any id if none is."""
    num_rare: int
    rare_start: int
    """The word at which the list of rare tokens begins. They are stored less `escape`."""
    rare_bits: int
    before_start: int
    """The word at which the numbers of rare tokens begin."""
    before_bits: int


# The loops get a plain tuple: numba's cache on disk cannot be read any more once a class that an
# argument had is renamed.
(
    _SIZE,
    _TOKEN_BITS,
    _PLACE_BITS,
    _ESCAPE,
    _NUM_RARE,
    _RARE_START,
    _RARE_BITS,
    _BEFORE_START,
    _BEFORE_BITS,
) = range(len(Sizes._fields))


@compiled
def pack(values: Ids, width: int, words: Words) -> None:
    """Pack numbers below 2^width; `words` begins with zeros."""
    for i in range(len(values)):
        bit = _U(i) * _U(width)
        value, shift = _U(values[i]), bit & _U(63)
        words[bit >> _U(6)] |= value << shift
        words[(bit >> _U(6)) + _U(1)] |= (value >> _U(1)) >> (_U(63) - shift)


@inlined
def _get(words: Words, start: Scalar, width: Scalar, seen: Marks, which: int, i: Scalar) -> Scalar:
    """Return a number of those that are packed from word `start` on."""
    bit = _U(i) * _U(width)
    word, shift = _U(start) + (bit >> _U(6)), bit & _U(63)
    if seen is not None:
        seen[which][word >> _BLOCK] = 1
        seen[which][(word + _U(1)) >> _BLOCK] = 1
    mask = (_U(1) << _U(width)) - _U(1)
    joined = (words[word] >> shift) | ((words[word + _U(1)] << _U(1)) << (_U(63) - shift))
    return np.int64(joined & mask)


@inlined
def _rare_before(text: Words, sizes: Plain, seen: Marks, i: Scalar) -> Scalar:
    """Count the rare tokens before a position."""
    begin = i // RARE_EVERY
    number = _get(text, sizes[_BEFORE_START], sizes[_BEFORE_BITS], seen, _TEXT, begin)
    for other in range(begin * RARE_EVERY, i):
        number += _get(text, 0, sizes[_TOKEN_BITS], seen, _TEXT, other) == sizes[_ESCAPE]
    return number


@inlined
def _rare(text: Words, sizes: Plain, seen: Marks, number: Scalar) -> Scalar:
    """Return a rare token by its number."""
    if number >= sizes[_NUM_RARE]:
        raise IndexError
    return sizes[_ESCAPE] + _get(text, sizes[_RARE_START], sizes[_RARE_BITS], seen, _TEXT, number)


@compiled
def _rare_token(text: Words, sizes: Plain, seen: Marks, i: Scalar) -> Scalar:
    """Return the token at the position of a rare one."""
    return _rare(text, sizes, seen, _rare_before(text, sizes, seen, i))


@inlined
def _token(text: Words, sizes: Plain, seen: Marks, i: Scalar) -> Scalar:
    """Return the token at a position of the text."""
    token = _get(text, 0, sizes[_TOKEN_BITS], seen, _TEXT, i)
    if token == sizes[_ESCAPE]:
        token = _rare_token(text, sizes, seen, i)
    return token


@inlined
def _place(places: Words, sizes: Plain, seen: Marks, row: Scalar) -> Scalar:
    """Return the position of a row's suffix."""
    place = _get(places, 0, sizes[_PLACE_BITS], seen, _PLACES, row)
    if place >= sizes[_SIZE]:
        raise IndexError
    return place


@compiled
def read_places(
    text: Words, places: Words, first: Numbers, sizes: Plain, seen: Marks, row: int, found: Numbers
) -> None:
    """Read the positions of rows, from one row on."""
    for i in range(len(found)):
        found[i] = _place(places, sizes, seen, np.int64(row) + i)


@compiled
def read_tokens(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    position: int,
    tokens: Numbers,
) -> None:
    """Read the tokens from a position on."""
    vocab_size = len(first) - 1
    number = np.int64(-1)  # of the next rare token, once it is known
    for i in range(len(tokens)):
        token = _get(text, 0, sizes[_TOKEN_BITS], seen, _TEXT, np.int64(position) + i)
        if token == sizes[_ESCAPE]:
            if number < 0:
                number = _rare_before(text, sizes, seen, np.int64(position) + i)
            token = _rare(text, sizes, seen, number)
            number += 1
        if token >= vocab_size:
            raise IndexError
        tokens[i] = token


@compiled
def _compare(
    text: Words, sizes: Plain, seen: Marks, place: Scalar, tokens: Ids, begin: Scalar, end: Scalar
) -> Scalar:
    """Return 0 if the suffix at `place` begins with `tokens[begin:end]`, else -1 or 1 by which of
    the two comes first."""
    for i in range(begin, end):
        if place == sizes[_SIZE]:
            return np.int64(-1)
        found = _token(text, sizes, seen, place)
        if found != tokens[i]:
            return np.int64(-1) if found < tokens[i] else np.int64(1)
        place += 1
    return np.int64(0)


@compiled
def _find(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    tokens: Ids,
    begin: Scalar,
    end: Scalar,
) -> Range:
    """Return the range of suffixes that begin with `tokens[begin:end]`."""
    if begin == end:
        return np.int64(0), np.int64(sizes[_SIZE])
    low, limit = first[tokens[begin]], first[np.int64(tokens[begin]) + 1]
    if begin + 1 == end:
        return low, limit
    high = limit
    while low < high:
        middle = (low + high) >> 1
        place = _place(places, sizes, seen, middle)
        if _compare(text, sizes, seen, place, tokens, begin, end) < 0:
            low = middle + 1
        else:
            high = middle
    # Most ranges are short: go up from the first row in growing steps.
    step, high = np.int64(1), low
    while high < limit:
        place = _place(places, sizes, seen, high)
        if _compare(text, sizes, seen, place, tokens, begin, end) != 0:
            break
        high = min(high + step, limit)
        step *= 2
    under = max(low, high - (step >> 1))
    while under < high:
        middle = (under + high) >> 1
        place = _place(places, sizes, seen, middle)
        if _compare(text, sizes, seen, place, tokens, begin, end) == 0:
            under = middle + 1
        else:
            high = middle
    return low, high


@compiled
def _token_at(
    text: Words, places: Words, sizes: Plain, seen: Marks, row: Scalar, depth: Scalar
) -> Scalar:
    """Return the token at a depth of a row's suffix, -1 after its end."""
    place = _place(places, sizes, seen, row) + depth
    return _token(text, sizes, seen, place) if place < sizes[_SIZE] else np.int64(-1)


@compiled
def _bound(
    text: Words,
    places: Words,
    sizes: Plain,
    seen: Marks,
    low: Scalar,
    high: Scalar,
    depth: Scalar,
    token: Scalar,
) -> Scalar:
    """Return the first row of a range whose token at `depth` is `token` or more."""
    while low < high:
        middle = (low + high) >> 1
        found = _token_at(text, places, sizes, seen, middle, depth)
        if found < token:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _end(
    text: Words,
    places: Words,
    sizes: Plain,
    seen: Marks,
    low: Scalar,
    limit: Scalar,
    depth: Scalar,
    token: Scalar,
) -> Scalar:
    """Return the end of the rows from `low` on, which has it, whose token at `depth` is `token`."""
    step, high = np.int64(1), low + 1
    while high < limit:
        found = _token_at(text, places, sizes, seen, high, depth)
        if found != token:
            break
        low = high + 1
        high = min(high + step, limit)
        step *= 2
    return _bound(text, places, sizes, seen, low, high, depth, token + 1)


@compiled
def _narrow(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    low: Scalar,
    high: Scalar,
    depth: Scalar,
    token: Scalar,
) -> Range:
    """Return the part of a range of equal first `depth` tokens that goes on with `token`."""
    if depth == 0:
        return first[token], first[token + 1]
    low = _bound(text, places, sizes, seen, low, high, depth, token)
    if low == high:
        return low, low
    found = _token_at(text, places, sizes, seen, low, depth)
    if found != token:
        return low, low
    return low, _end(text, places, sizes, seen, low, high, depth, token)


@compiled
def _continued(
    text: Words, places: Words, sizes: Plain, seen: Marks, low: Scalar, high: Scalar, depth: Scalar
) -> Scalar:
    """Return the first row of a range that has a token after `depth` tokens.

    One suffix alone may end there, that at the end of the text; it comes first.
    """
    if low < high:
        found = _token_at(text, places, sizes, seen, low, depth)
        if found < 0:
            return low + 1
    return low


@compiled
def _longest(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    tokens: Ids,
    begin: Scalar,
    end: Scalar,
) -> tuple[Scalar, Scalar, Scalar]:
    """Return where the longest end of `tokens[begin:end]` that the text goes on after begins, and
    its range."""
    low, high = np.int64(0), np.int64(sizes[_SIZE])
    until = np.int64(end)
    begin = max(np.int64(begin), end - (np.int64(DEPTH) - 1))
    while begin < until:
        middle = (begin + until) >> 1
        a, b = _find(text, places, first, sizes, seen, tokens, middle, end)
        a = _continued(text, places, sizes, seen, a, b, end - middle)
        if a < b:
            until, low, high = middle, a, b
        else:
            begin = middle + 1
    return until, low, high


@compiled
def find(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    tokens: Ids,
    found: Numbers,
) -> None:
    """Set `found` to the range of suffixes that begin with `tokens`."""
    found[0], found[1] = _find(
        text, places, first, sizes, seen, tokens, np.int64(0), np.int64(len(tokens))
    )


@compiled
def follow(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    tokens: Ids,
    num_before: int,
    targets_T: Ids,
    matches_T4: Numbers,
    state: Numbers,
) -> None:
    """Read the tokens after the first `num_before`, and find the longest match before each target.

    `matches_T4` gets the length of the longest end of the tokens so far that the text goes on
    after, how often the text has it, how often with the target after it, and its first row. The
    count is negative if only one token ever follows. `state` gets a
    position of the last match in the text and its length.
    """
    begin, low, high = _longest(
        text, places, first, sizes, seen, tokens, np.int64(0), np.int64(num_before)
    )
    known, a, b = np.int64(-1), np.int64(0), np.int64(0)
    for t in range(len(tokens) - num_before):
        end = np.int64(num_before + t)
        token, length = np.int64(tokens[end]), end - begin
        if token != known:  # not the target before
            a, b = _narrow(text, places, first, sizes, seen, low, high, length, token)
        a = _continued(text, places, sizes, seen, a, b, length + 1)
        if a < b and length + 1 < DEPTH:
            low, high = a, b
        else:
            begin, low, high = _longest(
                text, places, first, sizes, seen, tokens, begin + 1, end + 1
            )
        length = end + 1 - begin
        if t < len(targets_T):
            known = np.int64(targets_T[t])
            a, b = _narrow(text, places, first, sizes, seen, low, high, length, known)
            count = high - low
            if length > 0 and _token_at(text, places, sizes, seen, low, length) == _token_at(
                text, places, sizes, seen, high - 1, length
            ):
                count = -count
            matches_T4[t, 0], matches_T4[t, 1], matches_T4[t, 2] = length, count, b - a
            matches_T4[t, 3] = low
    length = np.int64(len(tokens)) - begin
    state[0], state[1] = 0, length
    if length > 0:
        state[0] = _place(places, sizes, seen, low)


@compiled
def stretches(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    tokens_T: Ids,
    found_T3: Numbers,
) -> None:
    """At each token, find the longest stretch that ends with it and stands in the text: its length,
    how often it occurs, and a row."""
    begin, low, high = np.int64(0), np.int64(0), np.int64(sizes[_SIZE])
    for t in range(len(tokens_T)):
        token = np.int64(tokens_T[t])
        a, b = _narrow(text, places, first, sizes, seen, low, high, t - begin, token)
        if a == b or t - begin >= DEPTH:
            begin, until = begin + 1, np.int64(t + 1)
            a, b = np.int64(0), np.int64(sizes[_SIZE])
            while begin < until:
                middle = (begin + until) >> 1
                c, d = _find(text, places, first, sizes, seen, tokens_T, middle, np.int64(t + 1))
                if c < d:
                    until, a, b = middle, c, d
                else:
                    begin = middle + 1
        low, high = a, b
        found_T3[t, 0] = t + 1 - begin
        found_T3[t, 1] = high - low if t + 1 > begin else 0
        found_T3[t, 2] = low


@compiled
def continuations(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    low: int,
    high: int,
    depth: int,
    tokens: Numbers,
    rows: Numbers,
    total: Numbers,
) -> None:
    """List the tokens that follow the first `depth` tokens of a range, and the first row of each.

    `total[0]` gets their number; lists that are too short are filled.
    """
    number, at = 0, np.int64(low)
    while at < high:
        if depth == 0:
            token = _token_at(text, places, sizes, seen, at, np.int64(0))
            if token + 1 >= len(first):
                raise IndexError
            end = first[token + 1]
        else:
            token = _token_at(text, places, sizes, seen, at, depth)
            end = _end(text, places, sizes, seen, at, np.int64(high), depth, token)
        if end <= at:
            raise IndexError
        if number < len(tokens):
            tokens[number], rows[number] = token, at
        number += 1
        at = end
    total[0] = number


@compiled
def first_guesses(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    ranges_R3: Numbers,
    guesses_R: Numbers,
) -> None:
    """Find the most frequent token after each range, given as depth, first row and count."""
    for r in range(len(ranges_R3)):
        depth, at = ranges_R3[r, 0], ranges_R3[r, 1]
        high, most = at + abs(ranges_R3[r, 2]), np.int64(0)
        while at < high:
            token = _token_at(text, places, sizes, seen, at, depth)
            end = _end(text, places, sizes, seen, at, high, depth, token)
            if end - at > most:
                most, guesses_R[r] = end - at, token
            at = end


@compiled
def add_continuations(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    matches_B4: Numbers,
    weights_B: NDArray[np.float32],
    logprobs_BV: NDArray[np.float32],
) -> None:
    """Mix the shares of the tokens that follow each row's longest match into distributions."""
    for b in range(len(matches_B4)):
        weight = np.float64(weights_B[b])
        if weight <= 0:
            continue
        rest = np.float32(np.log(1.0 - weight))
        for token in range(logprobs_BV.shape[1]):
            logprobs_BV[b, token] += rest
        depth, low = matches_B4[b, 0], matches_B4[b, 3]
        count = abs(matches_B4[b, 1])
        at, high = low, low + count
        while at < high:
            token = _token_at(text, places, sizes, seen, at, depth)
            if not 0 <= token < logprobs_BV.shape[1]:
                raise IndexError
            end = _end(text, places, sizes, seen, at, high, depth, token)
            share = weight * (end - at) / count
            logprobs_BV[b, token] = np.log(np.exp(np.float64(logprobs_BV[b, token])) + share)
            at = end


@compiled
def contexts(
    text: Words,
    places: Words,
    first: Numbers,
    sizes: Plain,
    seen: Marks,
    states_B2: Numbers,
    contexts_BC: Numbers,
) -> None:
    """Read the last tokens of each match, given as a position and a length; -1 before it."""
    for b in range(len(states_B2)):
        place, length = states_B2[b, 0], states_B2[b, 1]
        if place < 0 or length < 0 or place + length > sizes[_SIZE]:
            raise IndexError
        for c in range(contexts_BC.shape[1]):
            back = contexts_BC.shape[1] - c
            if back > length:
                contexts_BC[b, c] = -1
            else:
                contexts_BC[b, c] = _token(text, sizes, seen, place + length - back)
