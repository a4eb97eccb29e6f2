from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from elman.serve.workers import routing
from elman.serve.workers.routing import LONGEST, SPARE, Routing, beginnings


def body(prompt: object, **fields: object) -> bytes:
    return json.dumps({"model": "mine", "prompt": prompt, "max_tokens": 3, **fields}).encode()


@settings(max_examples=50)
@given(st.text(min_size=8), st.text(), st.text())
def test_prompts_that_begin_alike_share_beginnings(start: str, end: str, other: str) -> None:
    one, two = beginnings(body(start + end)), beginnings(body(start + other))
    shared = [a == b for a, b in zip(one, two, strict=False)]
    assert shared[0]
    assert shared == sorted(shared, reverse=True)  # once they differ, they go on differing


def test_a_beginning_is_of_a_model_and_a_label() -> None:
    one = beginnings(body("the same prompt"))
    assert not set(one) & set(beginnings(body("the same prompt", model="other")))
    assert not set(one) & set(beginnings(body("the same prompt", label="Irish")))
    assert set(one) & set(beginnings(body("the same prompt", seed=4)))


def test_ids_and_cut_off_bodies_have_beginnings() -> None:
    assert beginnings(body([1, 2, 3, 4]))
    whole = body("a long prompt, " * 1000)
    assert beginnings(whole[:500])[:3] == beginnings(whole)[:3]
    assert len(beginnings(whole)) == (LONGEST // 8).bit_length()


def test_a_request_without_a_prompt_has_none() -> None:
    assert beginnings(b"") == beginnings(b'{"text": "a \\"prompt\\": b"}') == []
    assert beginnings(b'{"model": "prompt", "input": "text"}') == []


def test_the_longest_known_beginning_decides() -> None:
    chosen = Routing()
    loads = {0: 0, 1: 0}
    first = chosen.choose(loads, beginnings(body("the old professor lost")))
    other = chosen.choose(loads, beginnings(body("her students laughed")))
    assert {first, other} == {0, 1}
    for end in (" it", " the exam", " the exam and"):
        assert chosen.choose(loads, beginnings(body("the old professor lost" + end))) == first


def test_others_go_to_the_least_busy_in_turn() -> None:
    chosen = Routing()
    assert [chosen.choose({0: 1, 1: 1, 2: 5}) for _ in range(4)] == [0, 1, 0, 1]
    assert chosen.choose({0: 3, 1: 2, 2: 0}) == 2


def test_a_worker_with_far_more_to_do_gets_no_more() -> None:
    chosen, begins = Routing(), beginnings(body("the old professor"))
    assert chosen.choose({0: 0, 1: 1}, begins) == 0
    assert chosen.choose({0: SPARE, 1: 0}, begins) == 0
    assert chosen.choose({0: SPARE + 1, 1: 0}, begins) == 1
    assert chosen.choose({0: 0, 1: 1}, begins) == 1  # it has the state now


def test_a_worker_that_is_gone_is_not_chosen() -> None:
    chosen, begins = Routing(), beginnings(body("the old professor"))
    assert chosen.choose({0: 0, 1: 1}, begins) == 0
    assert chosen.choose({1: 7}, begins) == 1


def test_beginnings_are_forgotten() -> None:
    chosen = Routing()
    for number in range(routing.MAX_BEGINNINGS + 5):
        chosen.choose({0: 0}, [number])
    assert len(chosen._workers) == routing.MAX_BEGINNINGS
