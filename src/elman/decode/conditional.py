"""Decode texts from given states: beam search or sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elman.decode.beam import Hypothesis, beam_search
from elman.decode.options import DecodeOptions
from elman.decode.sample import sample
from elman.models.interface import LanguageModel
from elman.nn.state import State


def decode(
    model: LanguageModel,
    state: State,
    options: DecodeOptions,
    *,
    boundary_id: int,
    unknown_id: int | None = None,
    limits: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """For each row of `state`, `options.num_samples` texts, ended by the boundary or at a limit.

    `limits` are the rows' maximum lengths, by default `max_tokens`. The token `unknown_id` is not
    generated, unless the options ask for it.
    """
    options = options.without_unknown(unknown_id)
    num_rows = state.batch_size
    limits = [options.max_tokens] * num_rows if limits is None else limits
    if options.beam_size > 1:
        return beam_search(
            model,
            [[]] * num_rows,
            options,
            boundary_id=boundary_id,
            end_ids={boundary_id},
            state=state,
            limits=limits,
        )
    rows: list[tuple[list[int], list[float]]] = [
        ([], []) for _ in range(num_rows * options.num_samples)
    ]
    stopped: set[int] = set()
    for step in sample(
        model,
        [[]] * num_rows,
        replace(options, max_tokens=max(limits)),
        boundary_id=boundary_id,
        end_ids={boundary_id},
        state=state,
        stopped=stopped,
    ):
        tokens, logprobs = rows[step.row]
        tokens.append(step.token)
        logprobs.append(step.logprob)
        if len(tokens) >= limits[step.row // options.num_samples]:
            stopped.add(step.row)
    found = [
        Hypothesis(
            tuple(tokens),
            sum(logprobs),
            sum(logprobs),
            "stop" if tokens[-1] == boundary_id else "length",
        )
        for tokens, logprobs in rows
    ]
    number = options.num_samples
    return [found[start : start + number] for start in range(0, len(found), number)]
