"""Measure one stream, sampled token by token: tokens per second, in float32 and with int8 weights.

Ours is everything that `elman generate` does for a token except decoding it to text. The peer is a
loop over `nn.LSTM` or `nn.GRU` with a softmax and a draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import cast

import torch
from torch import Tensor, nn

from elman.bench import recurrent
from elman.bench.measuring import Work, in_turns
from elman.bench.rows import Row
from elman.bench.sizes import CellName, Size
from elman.decode.options import DecodeOptions
from elman.decode.sample import sample
from elman.models.interface import LanguageModel


def measure(cells: Sequence[CellName], sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    for cell, size in product(cells, sizes):
        size = replace(size, batch_size=1)
        model = recurrent.language_model(cell, size).eval()
        models = {"ours": model.for_decoding(), "int8": model.for_decoding(quantise="int8")}
        peer, peer_cell = recurrent.PlainModel.beside(cell, size)
        peer.eval()
        works: dict[str, Work] = {
            name: partial(_sample, model, size) for name, model in models.items()
        }
        works["peer"] = partial(peer.generate, size.num_steps)
        kernels = {
            name: recurrent.run_and_name(works[name], cast(nn.Module, models[name].model))[1]
            for name in models
        }
        exact_model = recurrent.in_float64(recurrent.language_model(cell, size)).eval()
        exact = _next_logprobs(exact_model, size)
        costs = in_turns(works, repeat)
        for name, title in (("ours", ""), ("int8", ", int8")):
            errors = {"ours": recurrent.distance(_next_logprobs(models[name], size), exact)}
            if peer_cell == cell:
                logprobs = peer.next_logprobs(recurrent.random_tokens(size)[:, :-1])
                errors["peer"] = recurrent.distance(logprobs, exact)
            about = {"kernel": kernels[name], "beside": f"nn.{peer_cell.upper()} loop"}
            title = f"{cell} generation{title}"
            yield recurrent.token_row(title, costs[name], costs["peer"], size, errors, **about)


def _sample(model: LanguageModel, size: Size) -> None:
    config = DecodeOptions(max_tokens=size.num_steps, seed=1)
    for _ in sample(model, [[]], config, boundary_id=0):
        pass


@torch.no_grad()
def _next_logprobs(model: LanguageModel, size: Size) -> Tensor:
    """Log probabilities after a random text, read token by token."""
    state = model.initial_state(1)
    logprobs_BV = torch.empty(0)
    for token_B in recurrent.random_tokens(size)[:, :-1].t():
        logprobs_BV, state = model.step(token_B, state)
    return logprobs_BV
