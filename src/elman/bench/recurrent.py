"""What `elman bench kernels`, `step` and `generate` share: models, torch peers, errors, GPU timing.

Elman and its peer get the same weights and inputs. The error of a result is its relative distance
from the same computation in float64.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elman.base.counting import counted
from elman.bench.measuring import Cost, Work
from elman.bench.rows import Row, less_is_better, more_is_better
from elman.bench.sizes import CellName, Size
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.heads import HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.kernels import plans_by_layer, recorded_plans
from elman.nn.layer import RecurrentLayer
from elman.nn.torch_weights import to_torch

Result = TypeVar("Result")
Errors = Mapping[str, float]
"""The errors of `ours` and, if it computes the same, of `peer`."""


@contextmanager
def use_threads(number: int | None) -> Iterator[None]:
    """Set the number of threads of torch and of our own loops; None leaves it."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def over_threads(
    numbers: Sequence[int] | None, measure: Callable[[], Iterator[Row]]
) -> Iterator[Row]:
    """The rows of `measure` with each number of threads, which is in their names if there are
    several."""
    chosen: Sequence[int | None] = numbers or [None]
    for number in chosen:
        with use_threads(number):
            for row in measure():
                is_curve = numbers is not None and len(numbers) > 1
                of = counted(torch.get_num_threads(), "thread")
                yield replace(row, name=f"{row.name}, {of}") if is_curve else row


def run_and_name(work: Callable[[], Result], model: nn.Module) -> tuple[Result, str]:
    """Run `work` once, untimed; return its result and the kernels that computed `model`'s layers.

    The only source of `kernel` in the rows of all three benches.
    """
    with recorded_plans() as plans:
        result = work()
    return result, ", ".join(dict.fromkeys(plans_by_layer(model, plans).values()))


def language_model(cell: CellName, size: Size, head: HeadConfig | None = None) -> RecurrentLM:
    torch.manual_seed(1)
    config = RecurrentLMConfig(
        cell=cell,
        head=head or FullConfig(),
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        embedding_size=size.embedding_size,
    )
    return config.build(size.vocab_size, counts_V=torch.ones(size.vocab_size))


def in_float64(model: RecurrentLM) -> RecurrentLM:
    for layer in model.modules():
        if isinstance(layer, RecurrentLayer):
            layer.kernel = "reference"
    return model.double()


def random_tokens(size: Size) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = (size.batch_size, size.num_steps + 1)
    return torch.randint(size.vocab_size, shape, generator=generator)


class PlainModel(nn.Module):
    """What a torch user writes: embedding, nn.LSTM or nn.GRU, linear layer."""

    def __init__(self, model: RecurrentLM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab_size, model.config.embedding_size)
        self.layers = to_torch(model.stack)
        self.output = nn.Linear(model.config.hidden_size, model.vocab_size)
        own = model.head.softmax
        assert isinstance(own, nn.Module)
        self.embedding.load_state_dict(model.input.embedding.state_dict())  # type: ignore[union-attr]
        self.output.load_state_dict({"weight": own.weight, "bias": own.bias})

    @classmethod
    def beside(cls, cell: CellName, size: Size) -> tuple[PlainModel, CellName]:
        """The peer of a cell, and the cell that it has: torch knows only LSTM and GRU."""
        peer: CellName = cell if cell in ("lstm", "gru") else "lstm"
        return cls(language_model(peer, size)), peer

    def forward(self, tokens_BT: Tensor) -> Tensor:
        logits: Tensor = self.output(self.layers(self.embedding(tokens_BT))[0])
        return logits

    @torch.no_grad()
    def next_logprobs(self, tokens_BT: Tensor) -> Tensor:
        return torch.log_softmax(self(tokens_BT)[:, -1], dim=-1)

    @torch.no_grad()
    def generate(self, num_tokens: int) -> None:
        token, state = torch.zeros(1, 1, dtype=torch.long), None
        for _ in range(num_tokens):
            outputs, state = self.layers(self.embedding(token), state)
            probabilities = torch.softmax(self.output(outputs[:, -1]), dim=-1)
            token = torch.multinomial(probabilities, 1)


LARGE = 2048
LARGE_PRODUCTS = LARGE**3
"""Rows and columns of large matrices, and the multiplications of their product."""


def large_product(dtype: torch.dtype) -> Work:
    """A product of large matrices: its rate is what the processor can do at most."""
    left, right = torch.randn(2, LARGE, LARGE).to(dtype)
    return partial(torch.mm, left, right)


def step_products(model: RecurrentLM, size: Size) -> int:
    """Multiplications of a training step's products: one forward and two backward for each weight
    of the layers and the output layer, and each token."""
    cells = [layer.cell for layer in model.modules() if isinstance(layer, RecurrentLayer)]
    weights = sum(cell.input_weight.numel() + cell.recurrent_weight.numel() for cell in cells)
    weights += size.vocab_size * model.stack.output_size
    return 3 * weights * size.batch_size * size.num_steps


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def step_row(name: str, ours: Cost, peer: Cost, size: Size, errors: Errors, **about: Any) -> Row:
    """A row of microseconds per time step."""
    settings, factor = _settings(ours, peer, size, about), 1e6 / size.num_steps
    row = less_is_better(name, factor * ours.seconds, factor * peer.seconds, "us/step", **settings)
    return replace(row, error=errors.get("ours"), peer_error=errors.get("peer"))


def token_row(name: str, ours: Cost, peer: Cost, size: Size, errors: Errors, **about: Any) -> Row:
    """A row of tokens per second."""
    settings, tokens = _settings(ours, peer, size, about), size.batch_size * size.num_steps
    row = more_is_better(name, tokens / ours.seconds, tokens / peer.seconds, "tokens/s", **settings)
    return replace(row, error=errors.get("ours"), peer_error=errors.get("peer"))


def _settings(ours: Cost, peer: Cost, size: Size, about: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**vars(size), **about}
    if ours.cpu_seconds:  # a GPU's clock measures none
        settings["threads"] = torch.get_num_threads()
        settings["cpu_time_ratio"] = peer.cpu_seconds / ours.cpu_seconds
    return settings


# GPU


def by_the_gpu_clock(work: Work) -> Cost:
    """Time three calls on the GPU: a single call is mostly launch time."""
    times = 3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return Cost(start.elapsed_time(end) / 1e3 / times, 0.0, 0)


def captured(work: Work) -> Work:
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

    def replay(kept: Work = work) -> None:  # keeps alive the tensors that the graph reads
        graph.replay()

    return replay


def peak_bytes(work: Work) -> int:
    """Peak GPU memory of `work`, beyond what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
