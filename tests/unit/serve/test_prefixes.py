from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.nn.state import State
from elman.serve.prefixes import Prefix, PrefixCache

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def state(number: float) -> State:
    return State({"h": torch.tensor([[float(number)]])})


def put(cache: PrefixCache, prefix: Prefix, number: float) -> None:
    cache.put_all([(prefix, len(prefix), 0)], state(number))


def longest(cache: PrefixCache, prefix: Prefix) -> tuple[int, State | None]:
    length, place = cache.find(prefix, len(prefix))
    return length, None if place is None else cache.states([place])


@given(st.lists(TOKENS, max_size=12), TOKENS)
def test_the_longest_known_beginning_is_found(known: list[list[int]], asked: list[int]) -> None:
    cache = PrefixCache(1 << 20)
    for number, tokens in enumerate(known):
        put(cache, Prefix(tokens), number)
    length, found = longest(cache, Prefix(asked))
    beginnings = [tokens for tokens in known if asked[: len(tokens)] == tokens]
    assert length == max((len(tokens) for tokens in beginnings), default=0)
    if found is None:
        assert not beginnings
    else:
        last = max(i for i, tokens in enumerate(known) if tokens == asked[:length])
        assert float(found.tensor("h")) == last


def test_equal_hashes_are_not_taken_for_equal_prefixes() -> None:
    cache = PrefixCache(1 << 20)
    one, other = Prefix([1, 2]), Prefix([3, 4])
    other.hashes = one.hashes
    put(cache, one, 1)
    assert longest(cache, other) == (0, None)


def test_the_least_recently_used_gives_way() -> None:
    size = 8 + 4  # one token and one float
    cache = PrefixCache(2 * size)
    for token in (1, 2):
        put(cache, Prefix([token]), token)
    longest(cache, Prefix([1]))
    put(cache, Prefix([3]), 3)
    assert [longest(cache, Prefix([token]))[0] for token in (1, 2, 3)] == [1, 0, 1]
    assert len(cache) == 2
    assert cache.num_bytes == 2 * size
    assert (cache.hits, cache.misses) == (3, 1)


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache = PrefixCache(4)
    put(cache, Prefix([1]), 1)
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_a_state_stays_as_it_was_when_its_place_is_another_s() -> None:
    cache = PrefixCache(8 + 4)
    put(cache, Prefix([1]), 1)
    _, found = longest(cache, Prefix([1]))
    for token in range(2, 600):  # more than a block has places
        put(cache, Prefix([token]), token)
    assert found is not None
    assert float(found.tensor("h")) == 1
    assert longest(cache, Prefix([599])) == (1, state(599))
    assert longest(cache, Prefix([598])) == (0, None)
