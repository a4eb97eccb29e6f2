"""`elman bench streams`: many continuations at once, in this process, on a CPU or a GPU.

Ours is the batch of a server (`serve/stream_batch.py`) with all its work for a token except text
and HTTP: it reads every prompt, and each stream has its own options and random numbers. The peer is
a batch of nn.LSTM that reads all prompts in one call, then steps, with a softmax and a draw; its
streams start and end together.

B streams, T tokens, V vocabulary.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from elman.bench import recurrent
from elman.bench.rows import Row, less_is_better, more_is_better, note
from elman.bench.sizes import Size
from elman.decode.options import DecodeOptions
from elman.decode.streams_on_device import STEPS_BEFORE_CAPTURE
from elman.serve.stream_batch import StreamBatch
from elman.serve.streams import Continuation, Stream


@dataclass(frozen=True)
class Timing:
    """All streams, from the first request."""

    first_seconds: float
    """To the first token of the stream in the middle."""
    seconds: float
    """To the last token of all."""


def measure(
    sizes: Sequence[Size],
    numbers: Sequence[int],
    num_tokens: int,
    prompt_length: int,
    repeat: int,
    device: str,
) -> Iterator[Row]:
    """Two rows for each size and number of streams."""
    for size in sizes:
        model = recurrent.language_model("lstm", size).to(device).eval()
        peer = recurrent.PlainModel(model).to(device).eval()
        for number in numbers:
            some = replace(size, batch_size=number, num_steps=prompt_length - 1)
            prompts_BT = recurrent.random_tokens(some)
            batch = StreamBatch(model, boundary_id=0, max_streams=number)
            # On a GPU the first steps capture graphs, which a server has done before.
            num_before = STEPS_BEFORE_CAPTURE + 9 if device == "cuda" else 2
            ours = _in_batch(batch, prompts_BT)
            plain = _in_torch(peer, prompts_BT.to(device))
            ours(num_before)
            plain(num_before)
            gc.freeze()  # as a server does: else collections visit all modules again
            timings = [(ours(num_tokens), plain(num_tokens)) for _ in range(repeat)]
            gc.unfreeze()
            settings = {
                **vars(replace(some, num_steps=num_tokens)),
                "prompt": prompt_length,
                "repeat": repeat,
                "device": device,
                "beside": "steps of nn.LSTM",
            }
            if device == "cpu":
                settings["threads"] = torch.get_num_threads()
            elif batch.steps is not None:
                settings["steps"] = batch.steps.describe()
                note(f"steps: {batch.steps.describe()}")
            (rate, first), (peer_rate, peer_first) = (
                (
                    number * num_tokens / median(one.seconds for one in side),
                    1000 * median(one.first_seconds for one in side),
                )
                for side in zip(*timings, strict=True)
            )
            yield more_is_better("streams", rate, peer_rate, "tokens/s", **settings)
            yield less_is_better("streams, first token", first, peer_first, "ms", **settings)


def _in_batch(batch: StreamBatch, prompts_BT: Tensor) -> Callable[[int], Timing]:
    prompts = [tuple(prompt) for prompt in prompts_BT.tolist()]

    def run(num_tokens: int) -> Timing:
        options = [DecodeOptions(max_tokens=num_tokens, seed=seed) for seed in range(len(prompts))]
        started = time.perf_counter()
        streams = [
            Stream(Continuation(prompt=prompt, config=config))
            for prompt, config in zip(prompts, options, strict=True)
        ]
        for stream in streams:
            batch.add(stream)
        firsts: list[float] = []
        while not batch.is_idle:
            begun = sum(len(stream.tokens) == 1 for stream in batch.advance())
            firsts += [time.perf_counter() - started] * begun
        return Timing(median(firsts), time.perf_counter() - started)

    return run


def _in_torch(model: recurrent.PlainModel, prompts_BT: Tensor) -> Callable[[int], Timing]:
    @torch.no_grad()
    def run(num_tokens: int) -> Timing:
        started = time.perf_counter()
        tokens_BT, state, first = prompts_BT, None, 0.0
        for position in range(num_tokens):
            outputs_BTH, state = model.layers(model.embedding(tokens_BT), state)
            probabilities_BV = torch.softmax(model.output(outputs_BTH[:, -1]), dim=-1)
            tokens_BT = torch.multinomial(probabilities_BV, 1)
            tokens_BT.tolist()  # a server sends every token as soon as it is there
            if position == 0:
                first = time.perf_counter() - started
        return Timing(first, time.perf_counter() - started)

    return run
