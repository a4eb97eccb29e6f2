"""A beam search as a tree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.decode.beam import beam_search
from elman.decode.options import DecodeOptions
from elman.decode.sample import drawn_from, sample
from elman.decode.tree import decoding_tree

Make = Callable[..., Any]


@given(st.integers(0, 500), st.integers(2, 4), st.sampled_from([set(), {1}]))
@settings(max_examples=15)
def test_the_tree_has_the_results_of_the_search(
    table_lm: Make, seed: int, beam_size: int, ends: set[int]
) -> None:
    model = table_lm(seed=seed)
    options = DecodeOptions(max_tokens=5, beam_size=beam_size, num_samples=beam_size)
    (found,) = beam_search(model, [[2]], options, boundary_id=0, end_ids=ends)
    tree = decoding_tree(model, [2], options, boundary_id=0, end_ids=ends)

    def path(place: int | None) -> tuple[int, ...]:
        if place is None:
            return ()
        return (*path(tree.nodes[place].parent), tree.nodes[place].token)

    assert [path(place) for place in tree.best] == [hypothesis.tokens for hypothesis in found]
    assert [tree.nodes[place].score for place in tree.best] == [one.score for one in found]
    for node in tree.nodes:
        above = 0.0 if node.parent is None else tree.nodes[node.parent].total
        assert node.total == pytest.approx(above + node.logprob)
        assert node.logprob <= 1e-9
        assert node.step == 1 + (0 if node.parent is None else tree.nodes[node.parent].step)
    for step in range(1, 6):  # never more than the beam holds
        assert sum(node.step == step and not node.ends for node in tree.nodes) <= beam_size


def test_sampled_paths_are_those_of_sampling(table_lm: Make) -> None:
    model = table_lm(seed=3)
    options = DecodeOptions(max_tokens=4, beam_size=2)
    tree = decoding_tree(
        model, [2], options, boundary_id=0, end_ids={1}, num_samples=3, temperature=0.7, seed=5
    )
    drawing = DecodeOptions(max_tokens=4, temperature=0.7, num_samples=3, seed=5)
    expected: list[list[tuple[int, float]]] = [[], [], []]
    for step in sample(model, [[2]], drawing, boundary_id=0, end_ids={1}):
        expected[step.row].append((step.token, step.logprob))
    assert tree.samples == expected


def test_what_a_draw_is_from(table_lm: Make) -> None:
    model = table_lm(seed=1)
    logprobs_V, drawn_V = drawn_from(model, [2, 3], DecodeOptions(temperature=0.5), boundary_id=0)
    assert logprobs_V.tolist() == pytest.approx(model.logprobs_VVV[2, 3].tolist())
    torch.testing.assert_close(drawn_V, (2 * logprobs_V).softmax(0).float())
    _, cut_V = drawn_from(model, [2, 3], DecodeOptions(top_k=2), boundary_id=0)
    kept = sorted(math.exp(value) for value in logprobs_V.tolist())[-2:]
    assert sorted(cut_V.tolist())[-2:] == pytest.approx([p / sum(kept) for p in kept])
    assert (cut_V > 0).sum() == 2
    _, greedy_V = drawn_from(model, [2, 3], DecodeOptions(temperature=0), boundary_id=0)
    assert greedy_V.tolist() == [float(i == int(logprobs_V.argmax())) for i in range(6)]
