"""Beam search on a GPU: the search of `beam.py`, of which the host reads a little now and then.

Everything that a step reads and writes is a tensor of fixed shape (`Beams`): the hypotheses, the
best results of each prompt, the tokens of a few steps. So the host need not wait for a step before
it asks for the next. Every `STEPS_AT_ONCE` steps it reads which searches have ended, and drops
their rows. The steps of a model that translates again and again are replayed from CUDA graphs
(`GraphedBeams`), one launch each; the number of prompts is a power of two there.

What a step of the model hands on unchanged, such as what a decoder attends to, is the same in all
rows of a prompt, and stays where it is when rows change places.

N prompts, W rows per prompt, B = N W rows, R results per prompt, K steps, V vocabulary, E end
tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elman.decode.beam_step import Rules, divisor
from elman.nn.graphed import Capture, Graphed, Step, copy_state
from elman.nn.state import State

STEPS_AT_ONCE = 8
"""Steps between two looks of the host at what has ended."""
STEPS_BEFORE_CAPTURE = 32
"""Ordinary steps for each shape: a capture takes about as long."""
SCORE, LOGPROB, LENGTH, ROW, END = range(5)
"""Columns of a result; END is the place among the end tokens, or -1."""


@dataclass(frozen=True, eq=False)
class Beams:
    """All that a step reads and writes."""

    state: State
    """(B, ...) states that have not read `tokens_B` yet."""
    tokens_B: Tensor
    total_NW: Tensor
    """Log P of the hypotheses."""
    results_NRC: Tensor
    """The best results so far, in float64; a score of -inf where there are fewer."""
    is_going_N: Tensor
    limits_N: Tensor
    largest_N: Tensor
    """Log P of a hypothesis divided by this is the best score that it can still have."""
    length: Tensor
    """Tokens of the hypotheses."""
    place: Tensor
    """(1,) steps in `history_KNW2` so far."""
    history_KNW2: Tensor
    """The token of each row, and the row that it continues."""

    def tensors(self) -> Iterator[Tensor]:
        yield from self.state.flatten().values()
        for field in fields(self)[1:]:
            yield getattr(self, field.name)

    def select(self, prompts_N: Tensor, num_real: int) -> Beams:
        """Some prompts again, of which those after `num_real` are of no interest."""
        width = self.total_NW.shape[1]
        rows_B = _rows(prompts_N, torch.arange(width, device=prompts_N.device).expand(1, -1))
        is_real_N = torch.arange(len(prompts_N), device=prompts_N.device) < num_real
        return replace(
            self,
            state=self.state.select(rows_B),
            tokens_B=self.tokens_B[rows_B],
            total_NW=self.total_NW[prompts_N],
            results_NRC=self.results_NRC[prompts_N],
            is_going_N=self.is_going_N[prompts_N] & is_real_N,
            limits_N=self.limits_N[prompts_N],
            largest_N=self.largest_N[prompts_N],
            history_KNW2=self.history_KNW2[:, prompts_N],
        )


def _rows(prompts_N: Tensor, rows_NW: Tensor) -> Tensor:
    """(B,) places of rows of prompts among all rows."""
    return (prompts_N[:, None] * rows_NW.shape[1] + rows_NW).flatten()


def begin(
    logprobs_NV: Tensor, state: State, rules: Rules, limits: list[int], size: int
) -> tuple[Beams, Tensor]:
    """The beams of `size` prompts before their first token, and its log probabilities (B, V).

    `logprobs_NV` and `state` have a row for each prompt; the first rows fill up missing ones.
    """
    device, number, options = logprobs_NV.device, len(limits), rules.options
    width = options.beam_size
    prompts_N = torch.arange(size, device=device) % number
    rows_B = prompts_N.repeat_interleave(width)
    # All hypotheses of a prompt are the same one, which only the first row may continue.
    total_NW = logprobs_NV.new_full((size, width), -torch.inf, dtype=torch.float64)
    total_NW[:, 0] = 0
    results_NRC = total_NW.new_zeros(size, options.num_samples, END + 1)
    results_NRC[..., SCORE] = -torch.inf
    largest = [divisor(limit, options.length_penalty) for limit in limits]
    beams = Beams(
        state=state.select(rows_B),
        tokens_B=torch.zeros_like(rows_B),
        total_NW=total_NW,
        results_NRC=results_NRC,
        is_going_N=torch.arange(size, device=device) < number,
        limits_N=torch.tensor(limits, device=device)[prompts_N],
        largest_N=torch.tensor(largest, dtype=torch.float64, device=device)[prompts_N],
        length=torch.zeros((), dtype=torch.long, device=device),
        place=torch.zeros(1, dtype=torch.long, device=device),
        history_KNW2=prompts_N.new_zeros(STEPS_AT_ONCE, size, width, 2),
    )
    return beams, logprobs_NV[rows_B]


def extend(beams: Beams, rules: Rules, logprobs_BV: Tensor, after: State) -> State:
    """Continue the hypotheses by a token each, in place; return the states in their new order.

    `after` has read the tokens so far: what it shares with `beams.state` is not put into order.
    """
    num_prompts, width = beams.total_NW.shape
    found = rules.extend(logprobs_BV, beams.total_NW)
    covered_NW = rules.covered(after, width)
    beams.length.add_(1)
    penalised = ((5.0 + beams.length.double()) / 6.0) ** rules.options.length_penalty
    is_last_N = beams.limits_N == beams.length

    def entries(logprob_NX: Tensor, covered_NX: Tensor, *others: Tensor) -> Tensor:
        score_NX = logprob_NX / penalised + covered_NX
        score_NX = score_NX.where(beams.is_going_N[:, None], -torch.inf)
        return torch.stack(
            [score_NX, logprob_NX, *(one.expand_as(score_NX) for one in others)], dim=-1
        )

    rows_W = torch.arange(width, device=beams.total_NW.device, dtype=torch.float64)
    length = beams.length.double()
    results = [beams.results_NRC]
    if num_ends := len(rules.end_tokens):
        numbers_E = torch.arange(num_ends, device=rows_W.device, dtype=torch.float64)
        results.append(
            entries(
                found.ended_NWE.flatten(1),
                covered_NW.repeat_interleave(num_ends, dim=1),
                *(length - 1, rows_W.repeat_interleave(num_ends), numbers_E.repeat(width)),
            )
        )
    cut_NW = found.total_NW.where(is_last_N[:, None], -torch.inf)
    nowhere = torch.full_like(length, -1)
    results.append(entries(cut_NW, covered_NW.gather(1, found.parents_NW), length, rows_W, nowhere))
    all_NXC = torch.cat(results, dim=1)
    best_NR = all_NXC[..., SCORE].topk(beams.results_NRC.shape[1], dim=1).indices
    beams.results_NRC.copy_(all_NXC.gather(1, best_NR[..., None].expand(-1, -1, END + 1)))
    # Whether no unfinished hypothesis can still enter the results.
    best_N = found.total_NW[:, 0]
    least_N = beams.results_NRC[:, -1, SCORE]
    is_decided_N = (best_N == -torch.inf) | (least_N >= best_N / beams.largest_N)
    beams.is_going_N.logical_and_(~(is_last_N | is_decided_N))
    step_1NW2 = torch.stack([found.tokens_NW, found.parents_NW], dim=-1)[None]
    beams.history_KNW2.index_copy_(0, beams.place, step_1NW2)
    beams.place.add_(1)
    prompts_N = torch.arange(num_prompts, device=rows_W.device)
    rows_B = _rows(prompts_N, found.parents_NW)
    before = beams.state.flatten()
    ordered = {
        name: tensor if tensor is before[name] else tensor.index_select(0, rows_B)
        for name, tensor in after.flatten().items()
    }
    # Last: a state may hold the tokens themselves.
    beams.total_NW.copy_(found.total_NW)
    beams.tokens_B.copy_(found.tokens_NW.flatten())
    return State.unflatten(ordered)


def advance(step: Step, beams: Beams, rules: Rules) -> Beams:
    """A step of the model and of the search."""
    logprobs_BV, after = step(beams.tokens_B, beams.state)
    return replace(beams, state=extend(beams, rules, logprobs_BV, after))


@dataclass
class _CapturedSteps:
    beams: Beams
    rules: Rules
    """The graph reads its tensors."""
    replay: Callable[[], None] = lambda: None


class GraphedBeams(Graphed):
    """Steps of a model's searches, replayed from CUDA graphs once a shape has come often."""

    def __init__(self, device: torch.device, capture: Capture | None = None) -> None:
        super().__init__("steps of beam search", device, capture)
        self.device = device
        self.lock = threading.Lock()
        """Held by the search that uses the graphs; others do without."""

    def run(self, step: Step, beams: Beams, rules: Rules, weights: Hashable, times: int) -> Beams:
        """Make some steps. `weights` are the addresses of what the model's step reads."""
        self.num_calls += times
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in beams.tensors())
        key = rules.key, weights, shapes, torch.is_autocast_enabled("cuda")
        with self.capture.here():
            if self.problem is None and key not in self.captured:
                self.seen[key] = self.seen.get(key, 0) + times
                size = sum(tensor.numel() * tensor.element_size() for tensor in beams.tensors())
                often = self.seen[key] > STEPS_BEFORE_CAPTURE
                if often and self._has_room(size):
                    self._captures(key, lambda: self._capture(step, beams, rules), size)
            if key not in self.captured:
                for _ in range(times):
                    beams = self.capture.run(lambda now=beams: advance(step, now, rules))  # type: ignore[misc]
                return beams
            captured: _CapturedSteps = self.captured[key]
            if beams is not captured.beams:
                for target, source in zip(captured.beams.tensors(), beams.tensors(), strict=True):
                    target.copy_(source)
            for _ in range(times):
                captured.replay()
            self.num_replayed += times
            return captured.beams

    def _capture(self, step: Step, beams: Beams, rules: Rules) -> _CapturedSteps:
        """Capture a step; raise RuntimeError if it is impossible."""
        own = {
            field.name: getattr(beams, field.name).clone()
            for field in fields(beams)
            if field.name != "state"
        }
        captured = _CapturedSteps(Beams(state=beams.state.map(torch.clone), **own), rules)

        def work() -> None:
            copy_state(advance(step, captured.beams, rules).state, captured.beams.state)

        captured.replay = self.capture.record(work)
        return captured


_GRAPHS: WeakKeyDictionary[nn.Module, GraphedBeams] = WeakKeyDictionary()


def graphs_of(model: object, device: torch.device) -> GraphedBeams | None:
    """The graphs of a model, kept for as long as the model; None for one that is made anew for
    every search."""
    if not isinstance(model, nn.Module) or device.type != "cuda":
        return None
    found = _GRAPHS.get(model)
    if found is None or found.device != device:
        found = _GRAPHS[model] = GraphedBeams(device)
    return found


Ended = Callable[[int, NDArray[np.float64]], None]
"""Takes a prompt and its results (R, 5)."""
Took = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], None]
"""Takes the prompts of a step, and their rows' tokens and the rows that these continue."""


@contextmanager
def _owned(graphs: GraphedBeams | None) -> Iterator[GraphedBeams | None]:
    """Open a context with the graphs, or None while another search uses them."""
    if graphs is None or not graphs.lock.acquire(blocking=False):
        yield None
        return
    try:
        yield graphs
    finally:
        graphs.lock.release()


def search(
    model: object,
    step: Step,
    logprobs_NV: Tensor,
    state: State,
    rules: Rules,
    limits: list[int],
    took: Took,
    ended: Ended,
    graphs: GraphedBeams | None = None,
) -> None:
    """Search the continuations of all prompts, and hand over steps and results."""
    with _owned(graphs) as own:

        def size_of(number: int) -> int:
            return number if own is None else 1 << (number - 1).bit_length()

        weights: tuple[int, ...] = ()
        if isinstance(model, nn.Module):
            weights = tuple(t.data_ptr() for t in (*model.parameters(), *model.buffers()))
        beams, logprobs_BV = begin(logprobs_NV, state, rules, limits, size_of(len(limits)))
        beams = replace(beams, state=extend(beams, rules, logprobs_BV, beams.state))
        del logprobs_BV, logprobs_NV, state
        active, is_open = np.arange(len(limits)), np.ones(len(limits), np.bool_)
        num_steps, times = 1, STEPS_AT_ONCE - 1
        while True:
            times = min(times, max(limits) - num_steps)
            if own is not None:
                beams = own.run(step, beams, rules, weights, times)
            else:
                for _ in range(times):
                    beams = advance(step, beams, rules)
            num_steps += times
            number, num_results = len(active), beams.results_NRC.shape[1]
            told = torch.cat(
                [beams.results_NRC.flatten(1), beams.is_going_N.double()[:, None]], dim=1
            )
            results = told[:number].cpu().numpy()
            num_taken = (num_steps - 1) % STEPS_AT_ONCE + 1
            for tokens_NW2 in beams.history_KNW2[:num_taken, :number].cpu().numpy():
                took(active, tokens_NW2[..., 0], tokens_NW2[..., 1])
            is_going = results[:, -1] > 0
            for place in np.flatnonzero(~is_going & is_open[active]).tolist():
                ended(int(active[place]), results[place, :-1].reshape(num_results, END + 1))
            is_open[active] = is_going
            left = np.flatnonzero(is_going)
            if not len(left):
                return
            if size_of(len(left)) < len(beams.total_NW):
                prompts = left[np.arange(size_of(len(left))) % len(left)]
                beams = beams.select(torch.from_numpy(prompts).to(beams.tokens_B.device), len(left))
                active = active[left]
            beams.place.zero_()
            times = STEPS_AT_ONCE
