"""A beam search as a tree: every hypothesis that it kept at some step, and sampled paths beside it.

A node is a hypothesis; its parent is the same without the last token. A node without children that
did not end was dropped at the next step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elman.decode.beam import Hypothesis, beam_search
from elman.decode.options import DecodeOptions
from elman.decode.sample import sample
from elman.models.interface import LanguageModel
from elman.nn.state import State


@dataclass(frozen=True)
class Node:
    """A hypothesis that the search kept for a step, or one that ended."""

    parent: int | None
    """Its place among the nodes; None for a first token."""
    token: int
    logprob: float
    """Natural log probability of this token."""
    total: float
    """Of all tokens up to this one."""
    step: int
    """Number of tokens."""
    ends: bool
    """Whether the text ends with this token."""
    score: float | None = None
    """Of a result: `total` with the length penalty, which the search compares."""


@dataclass(frozen=True)
class Tree:
    """All steps of a beam search, and sampled paths."""

    nodes: list[Node]
    best: list[int]
    """The results, best first: places in `nodes`."""
    samples: list[list[tuple[int, float]]]
    """Sampled paths: tokens and their log probabilities."""


def decoding_tree(
    model: LanguageModel,
    prompt: Sequence[int],
    options: DecodeOptions,
    *,
    boundary_id: int,
    end_ids: Collection[int],
    state: State | None = None,
    num_samples: int = 0,
    temperature: float = 1.0,
    seed: int | None = None,
) -> Tree:
    """Search with `options`, keep every step, and draw `num_samples` paths.

    `state`, of one row, is what a conditional model was given.
    """
    nodes: list[Node] = []
    places: dict[tuple[int, ...], int] = {}
    totals: dict[tuple[int, ...], float] = {(): 0.0}
    ended: dict[tuple[int, ...], int] = {}

    def add(tokens: tuple[int, ...], total: float, score: float | None, *, ends: bool) -> None:
        before = tokens[:-1]
        logprob = total - totals[before]
        parent = places.get(before)
        nodes.append(Node(parent, tokens[-1], logprob, total, len(tokens), ends, score))
        if ends:
            ended[tokens] = len(nodes) - 1
        else:
            places[tokens], totals[tokens] = len(nodes) - 1, total

    def watch(
        alive: Sequence[tuple[tuple[int, ...], float]], results: Sequence[Hypothesis]
    ) -> None:
        for result in results:
            if result.finish_reason == "stop" and result.tokens not in ended:
                add(result.tokens, result.logprob, result.score, ends=True)
        for tokens, total in alive:
            if total > -float("inf"):
                add(tokens, total, None, ends=False)

    (found,) = beam_search(
        model,
        [prompt],
        options,
        boundary_id=boundary_id,
        end_ids=end_ids,
        state=state,
        watch=watch,
    )
    best = []
    for result in found:
        place = ended.get(result.tokens, places.get(result.tokens, -1))
        best.append(place)
        if nodes[place].score is None:  # it reached the greatest length
            node = nodes[place]
            nodes[place] = Node(
                node.parent, node.token, node.logprob, node.total, node.step, False, result.score
            )
    paths: list[list[tuple[int, float]]] = [[] for _ in range(num_samples)]
    if num_samples:
        drawing = DecodeOptions(
            max_tokens=options.max_tokens,
            temperature=temperature,
            num_samples=num_samples,
            seed=seed,
        )
        for step in sample(
            model, [prompt], drawing, boundary_id=boundary_id, end_ids=end_ids, state=state
        ):
            paths[step.row].append((step.token, step.logprob))
    return Tree(nodes, best, paths)
