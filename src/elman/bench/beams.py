"""`elman bench beams`: searches for translations, beside the same searches in plain torch.

The model has the size of the recipe multi30k-attention and random weights. A text ends when it is
as long as its source, so that both sides do the same work. The peer has the same weights and keeps
its hypotheses on the device; it knows all lengths beforehand, and leaves out what has ended. A
trained model has no peer: it translates the lines of a file, text included.

N sentences, K beam, B rows (N * K), S source steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.api import load
from elman.batches.buckets import pad
from elman.bench.measuring import Work, in_turns
from elman.bench.rows import Row, more_is_better, note
from elman.bench.sentences import (
    LENGTHS,
    TRANSLATOR,
    Moving,
    PlainTranslator,
    drawn,
    translation_model,
)
from elman.decode.beam_on_device import graphs_of
from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.tasks.translation.handle import Translator
from elman.tasks.translation.model import SequenceToSequence

END = 0
ROUNDS_FIRST = {"cpu": 1, "cuda": 7}
"""Untimed rounds of ours: on a GPU, graphs are captured."""

Texts = list[tuple[list[int], float]]
"""The tokens of each sentence, and their log probability."""


def measure(number: int, beam: int, repeat: int, device: str) -> Iterator[Row]:
    """A row for the beam and one for greedy search."""
    torch.manual_seed(1)
    model = translation_model().to(device).eval()
    peer = PlainTranslator(model).to(device).eval()
    sources = random_sentences(number)
    for size in dict.fromkeys((beam, 1)):
        works: dict[str, Work] = {
            "ours": partial(ours, model, sources, size),
            "peer": partial(plain, peer, sources, size),
        }
        found = {name: work() for name, work in works.items()}
        in_turns({"ours": works["ours"]}, ROUNDS_FIRST[device])
        costs = in_turns(works, repeat)
        yield _row(
            _title(size),
            number,
            costs["ours"].seconds,
            costs["peer"].seconds,
            model,
            beside="plain torch",
            tokens=sum(map(len, sources)),
            logprob=sum(logprob for _, logprob in found["ours"]),
            peer_logprob=sum(logprob for _, logprob in found["peer"]),
        )


def measure_run(
    run: str, lines: Sequence[str], beam: int, repeat: int, device: str
) -> Iterator[Row]:
    """The same rows for a trained translator and its texts, without a peer."""
    handle = load(run, device=device, kind=Translator)
    for size in dict.fromkeys((beam, 1)):
        options: dict[str, Any] = {"beam_size": size} if size > 1 else {"greedy": True}
        found: list[Any] = []

        def work(options: dict[str, Any] = options, found: list[Any] = found) -> None:
            found[:] = handle.translations(lines, **options)

        in_turns({"": work}, ROUNDS_FIRST[device])
        cost = in_turns({"": work}, repeat)[""]
        tokens = sum(best.tokens for best, *_ in found)
        about = {"run": run, "tokens": tokens}
        yield _row(_title(size), len(lines), cost.seconds, None, handle.model, **about)


def _title(beam: int) -> str:
    return f"beam of {beam}" if beam > 1 else "greedy search"


def _row(
    title: str, number: int, seconds: float, peer: float | None, model: nn.Module, **about: Any
) -> Row:
    device = next(model.parameters()).device
    about |= {"sentences": number, "seconds": seconds, "device": device.type}
    if device.type == "cpu":
        about["threads"] = torch.get_num_threads()
    elif graphs := graphs_of(model, device):
        about["steps"] = graphs.describe()
        note(f"steps of beams so far: {graphs.describe()}")
    peer_rate = None if peer is None else number / peer
    return more_is_better(title, number / seconds, peer_rate, "sentences/s", **about)


def random_sentences(number: int) -> list[list[int]]:
    """Lengths as in `elman bench sentences`."""
    random = np.random.default_rng(2)
    lengths = (LENGTHS[place % len(LENGTHS)] for place in range(number))
    return [drawn(random, TRANSLATOR[1], length).tolist() for length in lengths]


def ours(model: SequenceToSequence, sources: Sequence[Sequence[int]], beam: int) -> Texts:
    # No text ends before its limit.
    options = DecodeOptions(beam_size=beam, greedy=beam == 1, logit_bias={END: -torch.inf})
    source_NS, mask_NS = (part.to(model.boundary.device) for part in pad(sources, END))
    with torch.no_grad():
        state = model.condition(source_NS, mask_NS)
    limits = [len(source) for source in sources]
    found = decode(model, state, options, boundary_id=END, limits=limits)
    return [(list(best.tokens), best.logprob) for (best,) in found]


@torch.no_grad()
def plain(model: PlainTranslator, sources: Sequence[Sequence[int]], beam: int) -> Texts:
    """What a torch user writes: all prompts at once, the longest first."""
    order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))
    device = model.bias.device
    source_NS, mask_NS = (part.to(device) for part in pad([sources[place] for place in order], END))
    memory_NSM, keys_NSH, start = model.encode(source_NS, mask_NS)
    # A row for each hypothesis; all but one of a prompt are impossible at first.
    memory_BSM, keys_BSH, mask_BS = (
        part.repeat_interleave(beam, 0) for part in (memory_NSM, keys_NSH, mask_NS)
    )
    moving = _each(start, lambda part: part.repeat_interleave(beam, 0))
    total_NK = torch.full((len(order), beam), -torch.inf, device=device)
    total_NK[:, 0] = 0
    tokens_NK = torch.full((len(order), beam), END, device=device)
    steps, best = [], []
    for step in range(len(sources[order[0]])):
        number = sum(len(source) > step for source in sources)
        best.append(total_NK[number:, 0])
        rows = number * beam
        tokens_B = tokens_NK[:number].flatten()
        moving = model.advance(
            model.embedding(tokens_B) * model.scale,
            _each(moving, lambda part, rows=rows: part[:rows]),
            *(part[:rows] for part in (memory_BSM, keys_BSH, mask_BS)),
        )
        logprobs_BV = torch.log_softmax(model.logits(moving[-1]), dim=1)
        logprobs_BV[:, END] = -torch.inf
        vocab_size = logprobs_BV.shape[1]
        sums_NX = (total_NK[:number].reshape(-1, 1) + logprobs_BV).view(number, -1)
        total_NK, places_NK = sums_NX.topk(beam, dim=1)
        parents_NK, tokens_NK = places_NK // vocab_size, places_NK % vocab_size
        first_N1 = torch.arange(number, device=device)[:, None] * beam
        rows_B = (first_N1 + parents_NK).flatten()
        moving = _each(moving, lambda part, rows_B=rows_B: part[rows_B])
        steps.append((tokens_NK, parents_NK))
    best.append(total_NK[:, 0])
    texts = _traced(steps)
    logprobs = torch.cat(best[::-1]).tolist()
    by_place = dict(zip(order, zip(texts, logprobs, strict=True), strict=True))
    return [by_place[place] for place in range(len(sources))]


def _each(moving: Moving, change: Callable[..., Tensor]) -> Moving:
    h_BH, c_BH, fed_BR = moving
    return change(h_BH), change(c_BH), change(fed_BR)


def _traced(steps: Sequence[tuple[Tensor, Tensor]]) -> list[list[int]]:
    """The best hypothesis of each sentence, from its last step backwards."""
    first_NK, _ = steps[0]
    tokens_TN = first_NK.new_full((len(steps), len(first_NK)), -1)
    place_N1 = first_NK.new_zeros(0, 1)
    for step in reversed(range(len(steps))):
        tokens_NK, parents_NK = steps[step]
        begun_N1 = place_N1.new_zeros(len(tokens_NK) - len(place_N1), 1)
        place_N1 = torch.cat([place_N1, begun_N1])
        tokens_TN[step, : len(place_N1)] = tokens_NK.gather(1, place_N1)[:, 0]
        place_N1 = parents_NK.gather(1, place_N1)
    return [[token for token in row if token >= 0] for row in tokens_TN.t().tolist()]
