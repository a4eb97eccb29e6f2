"""Recurrent speed on a GPU beside torch's layers: single layers, and whole training steps.

A launch costs the processor more than many a kernel costs the GPU, so every comparison has two
rows: as calls are made one by one, and replayed from CUDA graphs, both sides alike. Times are those
of the GPU's own clock, peers in turns. Beside every time stands the relative distance of its result
from the same computation in float64, and the memory that it took at most.

B batch, T time steps, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.batches.batch import Batch
from elman.evaluate.bench_speed import CellName, Size
from elman.evaluate.measuring import Cost, Row, interleaved, less_is_better, median, more_is_better
from elman.models.recurrent import RecurrentLMConfig
from elman.nn.heads.full import FullConfig
from elman.nn.kernels import recorded_plans
from elman.nn.layer import RecurrentLayer
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State
from elman.nn.torch_weights import to_torch
from elman.objectives.config import ObjectiveConfig
from elman.objectives.likelihood import likelihood
from elman.train.gradients import clip
from elman.train.graphed import Figures, GraphedUpdate
from elman.train.optimisers import OptimiserConfig, build

Work = Callable[[], Any]

LAYERS = [
    Size(256, 64, 128),
    Size(512, 64, 128),
    Size(512, 16, 128),
    Size(1024, 20, 70),
    Size(1024, 32, 70),
    Size(1024, 64, 128),
    Size(1152, 20, 70),
    Size(1152, 80, 70),
    Size(1536, 20, 35),
    Size(2048, 128, 20),
]
"""Layers, their inputs as wide as they are."""

STEPS = [
    Size(1150, batch, 70, num_layers=3, vocab_size=10_000, embedding_size=400) for batch in (20, 80)
]
"""Training steps: AWD-LSTM's size (Merity, Keskar and Socher 2018)."""


def kernels(
    cells: Sequence[CellName], sizes: Sequence[Size], repeat: int, dtype: torch.dtype
) -> Iterator[Row]:
    """One layer, forward and backward, microseconds per time step."""
    for cell in cells:
        for size in sizes:
            torch.manual_seed(0)
            config = StackConfig(cell=cell, hidden_size=size.hidden_size)
            stack = Stack(config, size.hidden_size).to("cuda", dtype)
            shape = (size.num_steps, size.batch_size, size.hidden_size)
            inputs_TBI = torch.randn(shape, device="cuda", dtype=dtype)
            gradient_TBH = torch.randn(shape, device="cuda", dtype=dtype)
            make = {
                "ours": partial(_ours, stack, inputs_TBI, gradient_TBH),
                "peer": partial(_theirs, stack, inputs_TBI, gradient_TBH),
            }
            # Nothing of theirs may have run outside the graph's stream before it is captured.
            replays = {name: _captured(work()) for name, work in make.items()}
            calls = {name: work() for name, work in make.items()}
            exact = _exact(stack, inputs_TBI, gradient_TBH)
            with recorded_plans() as plans:
                found = {name: (work().double(), _peak(work)) for name, work in calls.items()}
            errors = {
                name: float((result - exact).norm() / exact.norm())
                for name, (result, _) in found.items()
            }
            layer = stack.layers[0]
            assert isinstance(layer, RecurrentLayer)
            for title, works in (("", calls), (", graphed", replays)):
                costs = interleaved({name: _timed(work) for name, work in works.items()}, repeat)
                ours, peer = (
                    median(costs[name]).seconds * 1e6 / size.num_steps for name in ("ours", "peer")
                )
                row = less_is_better(
                    f"{cell} layer{title}",
                    ours,
                    peer,
                    "us/step",
                    **vars(size),
                    dtype=str(dtype).removeprefix("torch."),
                    kernel=plans[layer][0].describe(),
                    beside=f"nn.{cell.upper()}",
                    peak_bytes=found["ours"][1],
                    peer_peak_bytes=found["peer"][1],
                )
                yield replace(row, error=errors["ours"], peer_error=errors["peer"])


def steps(sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    """Whole training steps of an AWD-LSTM in bfloat16, with its dropouts, penalties and clipping.

    Ours is the step as `elman train` makes it. The peer is the same model on torch's layers,
    called one by one, and in a second row replayed from a graph as well.
    """
    for size in sizes:
        works = {
            "ours": _update(size, "auto", graphed=True),
            "peer": _update(size, "torch", graphed=False),
            "graphed peer": _update(size, "torch", graphed=True),
        }
        costs = interleaved({name: _timed(work) for name, work in works.items()}, repeat)
        tokens = size.batch_size * size.num_steps
        for title, peer in (("", "peer"), (", both graphed", "graphed peer")):
            yield more_is_better(
                f"AWD-LSTM training step{title}",
                tokens / median(costs["ours"]).seconds,
                tokens / median(costs[peer]).seconds,
                "tokens/s",
                **vars(size),
                dtype="bfloat16",
                beside="nn.LSTM",
            )


def _ours(stack: Stack, inputs_TBI: Tensor, gradient_TBH: Tensor) -> Work:
    stack = _copy(stack, stack.config)
    inputs_BTI = inputs_TBI.transpose(0, 1).detach().clone().requires_grad_()
    state = stack.initial_state(inputs_BTI.shape[0])
    leaves = [inputs_BTI, *stack.parameters()]

    def work() -> Tensor:
        _forget(leaves)
        stack(inputs_BTI, state)[0].backward(gradient_TBH.transpose(0, 1))
        assert inputs_BTI.grad is not None
        return inputs_BTI.grad.transpose(0, 1)

    return work


def _theirs(stack: Stack, inputs_TBI: Tensor, gradient_TBH: Tensor) -> Work:
    module: Any = to_torch(stack)
    module = type(module)(inputs_TBI.shape[2], gradient_TBH.shape[2]).to(inputs_TBI)  # time first
    module.load_state_dict(to_torch(stack).state_dict())
    module.flatten_parameters()
    inputs = inputs_TBI.detach().clone().requires_grad_()
    leaves = [inputs, *module.parameters()]

    def work() -> Tensor:
        _forget(leaves)
        module(inputs)[0].backward(gradient_TBH)
        assert inputs.grad is not None
        return inputs.grad

    return work


def _exact(stack: Stack, inputs_TBI: Tensor, gradient_TBH: Tensor) -> Tensor:
    exact = _copy(stack.double(), replace(stack.config, kernel="reference"))
    found: Tensor = _ours(exact, inputs_TBI.double(), gradient_TBH.double())()
    stack.to(inputs_TBI.dtype)
    return found


def _copy(stack: Stack, config: StackConfig) -> Stack:
    new = Stack(config, stack.input_size).to(next(stack.parameters()))
    new.load_state_dict(stack.state_dict())
    return new


def _forget(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        tensor.grad = None


def _update(size: Size, kernel: str, *, graphed: bool) -> Work:
    """One training step of an AWD-LSTM on a batch that stays the same."""
    torch.manual_seed(0)
    model = RecurrentLMConfig(
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        embedding_size=size.embedding_size,
        tied=True,
        kernel=kernel,
        head=FullConfig(unigram_bias=False),
        dropout_embedding=0.1,
        dropout_input=0.4,
        dropout_hidden=0.25,
        dropout_output=0.4,
        weight_drop=0.5,
    )
    lm = model.build(size.vocab_size).cuda().train()
    parameters = list(lm.parameters())
    optimiser = build(OptimiserConfig(kind="sgd", learning_rate=1.0), parameters)
    objective = ObjectiveConfig(activation_penalty=2.0, change_penalty=1.0)
    shape = (size.batch_size, size.num_steps + 1)
    tokens_BT = torch.randint(size.vocab_size, shape, device="cuda")
    batch = Batch(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())

    def update(batch: Batch, state: State | None) -> tuple[Figures, State | None]:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            outcome = likelihood(objective, lm, batch, state)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        norm, norms_P = clip(parameters, 0.25)
        optimiser.step()
        assert outcome.state is not None
        return (outcome.nats, norm, norms_P), outcome.state.detach()

    advance = (
        GraphedUpdate(update, lm.initial_state, torch.device("cuda", 0)) if graphed else update
    )
    state: State | None = lm.initial_state(size.batch_size)

    def work() -> None:
        nonlocal state
        _, state = advance(batch, state)

    for _ in range(6):  # libraries set themselves up, the graph is captured
        work()
    return work


def _captured(work: Work) -> Work:
    """The same work, replayed from a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay(kept: Work = work) -> None:  # the graph reads what belongs to the work
        graph.replay()

    return replay


def _peak(work: Work) -> int:
    """Bytes that `work` holds at most, beyond what there was before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _timed(work: Work) -> Callable[[], Cost]:
    """Work by the GPU's clock, several times over: one time alone is mostly the start."""

    def task() -> Cost:
        times = 3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        for _ in range(times):
            work()
        end.record()
        torch.cuda.synchronize()
        return Cost(start.elapsed_time(end) / 1e3 / times, 0.0, 0)

    return task
