"""Recurrent speed side by side with plain torch: layers, whole training steps, generation.

Each comparison gives Elman and its peer the same weights and the same inputs, measures them in
turns and compares medians. Beside every time stands an error: how far its result is from the same
computation in float64, relative to that result's size. The cells that torch does not have are
measured against what one would write instead: the papers' scan in log space for a layer, an LSTM
of the same width for a whole step.

B batch, T time steps, I inputs, H hidden units, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elman.batches.batch import Batch
from elman.decode.config import DecodeConfig
from elman.decode.sample import sample
from elman.evaluate.measuring import Row, interleaved, less_is_better, median, more_is_better, timed
from elman.models.interface import LanguageModel
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.heads import HeadConfig
from elman.nn.heads.full import FullConfig
from elman.nn.heads.sampled import SampledConfig
from elman.nn.kernels import recorded_plans
from elman.nn.layer import RecurrentLayer
from elman.nn.scan_cells import ScanCell
from elman.nn.stack import Stack, StackConfig
from elman.nn.torch_weights import to_torch
from elman.objectives.config import ObjectiveConfig
from elman.objectives.likelihood import likelihood
from elman.train.gradients import clip
from elman.train.optimisers import OptimiserConfig, build

CellName = Literal["lstm", "gru", "mingru", "minlstm", "sru"]
CELLS: tuple[CellName, ...] = ("lstm", "gru", "mingru", "minlstm", "sru")
Work = Callable[[], Any]


@dataclass(frozen=True)
class Size:
    """What is measured."""

    hidden_size: int
    batch_size: int
    num_steps: int
    num_layers: int = 1
    vocab_size: int = 65
    embedding_size: int = 64


LAYERS = [
    *(Size(hidden, 32, 128) for hidden in (64, 128, 256, 512)),
    *(Size(256, batch, 128) for batch in (1, 8, 64)),
    *(Size(256, 32, steps) for steps in (16, 512)),
]
"""Layers: over the hidden size, over the batch, over the length."""

STEPS = [
    Size(256, 32, 128),
    Size(256, 64, 128),
    Size(512, 32, 128, num_layers=2),
    Size(512, 64, 128, num_layers=2),
    Size(200, 20, 35, num_layers=2, vocab_size=10_000, embedding_size=200),
    Size(650, 20, 35, num_layers=2, vocab_size=10_000, embedding_size=650),
]
"""Training steps: characters, then words."""

STREAMS = [
    Size(256, 1, 100),
    Size(512, 1, 100, num_layers=2),
    Size(200, 1, 100, num_layers=2, vocab_size=10_000, embedding_size=200),
    Size(650, 1, 50, num_layers=2, vocab_size=10_000, embedding_size=650),
]
"""Generation of one stream: characters, then words."""


MANY_WORDS = 10_000
"""The vocabulary from which a sampled softmax is measured too."""


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """So many threads for torch, and for our own loops; None for as many as there are."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kernels(cells: Sequence[CellName], sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    """One layer, forward and backward, microseconds per time step."""
    for cell in cells:
        for size in sizes:
            torch.manual_seed(0)
            config = StackConfig(cell=cell, hidden_size=size.hidden_size)
            stack = Stack(config, size.hidden_size)
            layer = stack.layers[0]
            assert isinstance(layer, RecurrentLayer)
            inputs_BTI = torch.randn(size.num_steps, size.batch_size, size.hidden_size)
            inputs_BTI = inputs_BTI.transpose(0, 1)
            peer, name = _layer_peer(stack)
            tasks = {
                "ours": _both_ways(lambda x, stack=stack: stack(x)[0], stack, inputs_BTI),
                "peer": _both_ways(peer, stack if name == "log space" else peer, inputs_BTI),
            }
            with recorded_plans() as plans:
                first = {name: work().clone() for name, work in tasks.items()}
            costs = _measured(tasks, repeat)
            yield _row(
                f"{cell} layer",
                less_is_better,
                costs,
                _errors(first, _exact_layer(stack, inputs_BTI)),
                size,
                kernel=plans[layer][0].describe(),
                beside=name,
                unit="us/step",
                factor=1e6 / size.num_steps,
            )


def steps(cells: Sequence[CellName], sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    """Whole training steps, output layer, clipping and Adam included: tokens per second.

    Over many words a second row has the sampled softmax that automatic choices take on a CPU,
    beside the same peer with its full one: another objective for the same model, so no error.
    """
    for cell in cells:
        for size in sizes:
            torch.manual_seed(0)
            model, tokens_BT = _model(cell, size), _tokens(size)
            batch = Batch(tokens_BT[:, :-1], tokens_BT[:, 1:], None, True)
            name = cell if cell in ("lstm", "gru") else "lstm"
            peer = _Plain(model if name == cell else _model(name, size))
            tasks = {
                "ours": _our_step(model, batch),
                "peer": _plain_step(peer, batch),
            }
            first = {name: work().clone() for name, work in tasks.items()}
            if size.vocab_size >= MANY_WORDS:
                tasks["sampled"] = _our_step(
                    _model(cell, size, SampledConfig(num_samples=1024)), batch
                )
                tasks["sampled"]()
            costs = _measured(tasks, repeat)
            # In float64 at the end: the memory that this leaves behind would serve what follows.
            exact = _gradient(_our_step(_exact(_model(cell, size)), batch, update=False))
            errors = _errors(first, exact, only_ours=name != cell)
            for ours, title in (("ours", ""), ("sampled", ", sampled softmax")):
                if ours in costs:
                    yield _row(
                        f"{cell} training step{title}",
                        more_is_better,
                        {"ours": costs[ours], "peer": costs["peer"]},
                        errors if ours == "ours" else {},
                        size,
                        beside=f"nn.{name.upper()}",
                        unit="tokens/s",
                        factor=size.batch_size * size.num_steps,
                    )


def generation(cells: Sequence[CellName], sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    """One stream, sampled token by token: tokens per second, in float32 and with one-byte weights.

    Ours is all that `elman generate` does for a token but turning it into text; the peer is a loop
    over `nn.LSTM` or `nn.GRU` with a softmax and a draw.
    """
    for cell in cells:
        for size in sizes:
            torch.manual_seed(0)
            name = cell if cell in ("lstm", "gru") else "lstm"
            model = _model(cell, size).eval()
            plain, rounded = model.for_decoding(), model.for_decoding(quantise="int8")
            peer = _Plain(model if name == cell else _model(name, size)).eval()
            tasks: dict[str, Work] = {
                "ours": partial(_sampled, plain, size),
                "int8": partial(_sampled, rounded, size),
                "peer": partial(peer.generate, size.num_steps),
            }
            exact = _read(_exact(_model(cell, size)).eval(), size)
            costs = _measured(tasks, repeat)
            for ours, title in (("ours", ""), ("int8", ", int8")):
                found = {"ours": _read(plain if ours == "ours" else rounded, size)}
                if name == cell:
                    found["peer"] = peer.read(_tokens(size)[:, :-1])
                errors = {who: _distance(logprobs, exact) for who, logprobs in found.items()}
                yield _row(
                    f"{cell} generation{title}",
                    more_is_better,
                    {"ours": costs[ours], "peer": costs["peer"]},
                    errors,
                    size,
                    beside=f"nn.{name.upper()} loop",
                    unit="tokens/s",
                    factor=size.num_steps,
                )


# Layers


def _layer_peer(stack: Stack) -> tuple[Any, str]:
    cell = stack.layers[0].cell
    if isinstance(cell, ScanCell):
        return (lambda inputs_BTI: _log_space(cell, inputs_BTI)), "log space"
    module = to_torch(stack)
    return _First(module), f"nn.{type(module).__name__}"


class _First(nn.Module):
    """A torch layer without its final state."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs_BTI: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs_BTI)[0]
        return outputs


def _log_space(cell: ScanCell, inputs_BTI: Tensor) -> Tensor:
    """The papers' scan (Heinsen, 2023): sums and sums of exponentials of logarithms.

    What is added must be positive, so that an SRU's is taken by its size: the same amount of work.
    """
    projected = cell.project(inputs_BTI)
    keep, add = cell.coefficients(projected)
    kept = torch.cumsum(keep.log(), 1)
    logs = torch.logcumsumexp(add.abs().log() - kept, 1)
    return cell.read(projected, (kept + logs).exp())


def _both_ways(forward: Any, owner: Any, inputs_BTI: Tensor) -> Work:
    """Forward and backward; the result is the gradient of the inputs."""

    def work() -> Tensor:
        inputs = inputs_BTI.detach().requires_grad_()
        for parameter in owner.parameters() if isinstance(owner, nn.Module) else ():
            parameter.grad = None
        forward(inputs).square().sum().backward()
        assert inputs.grad is not None
        return inputs.grad

    return work


def _exact_layer(stack: Stack, inputs_BTI: Tensor) -> Tensor:
    exact = Stack(replace(stack.config, kernel="reference"), stack.input_size).double()
    exact.load_state_dict({k: v.double() for k, v in stack.state_dict().items()})
    gradient: Tensor = _both_ways(lambda x: exact(x)[0], exact, inputs_BTI.double())()
    return gradient


# Models


def _model(cell: CellName, size: Size, head: HeadConfig | None = None) -> RecurrentLM:
    torch.manual_seed(1)
    config = RecurrentLMConfig(
        cell=cell,
        head=head or FullConfig(),
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        embedding_size=size.embedding_size,
    )
    return config.build(size.vocab_size, counts_V=torch.ones(size.vocab_size))


def _exact(model: RecurrentLM) -> RecurrentLM:
    for layer in model.modules():
        if isinstance(layer, RecurrentLayer):
            layer.kernel = "reference"
    return model.double()


def _tokens(size: Size) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = (size.batch_size, size.num_steps + 1)
    return torch.randint(size.vocab_size, shape, generator=generator)


class _Plain(nn.Module):
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

    def forward(self, tokens_BT: Tensor) -> Tensor:
        logits: Tensor = self.output(self.layers(self.embedding(tokens_BT))[0])
        return logits

    @torch.no_grad()
    def read(self, tokens_BT: Tensor) -> Tensor:
        """Log probabilities of what follows the last token."""
        return torch.log_softmax(self(tokens_BT)[:, -1], dim=-1)

    @torch.no_grad()
    def generate(self, num_tokens: int) -> None:
        """Sample token by token."""
        token, state = torch.zeros(1, 1, dtype=torch.long), None
        for _ in range(num_tokens):
            outputs, state = self.layers(self.embedding(token), state)
            probabilities = torch.softmax(self.output(outputs[:, -1]), dim=-1)
            token = torch.multinomial(probabilities, 1)


def _our_step(model: RecurrentLM, batch: Batch, *, update: bool = True) -> Work:
    parameters = list(model.parameters())
    optimiser = build(OptimiserConfig(learning_rate=1e-3), parameters)

    def work() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        likelihood(ObjectiveConfig(), model, batch, None).loss.backward()  # type: ignore[no-untyped-call]
        gradient = _embedding_gradient(model)
        if update:
            clip(parameters, 1.0)
            optimiser.step()
        return gradient

    return work


def _plain_step(model: _Plain, batch: Batch) -> Work:
    parameters = list(model.parameters())
    optimiser = torch.optim.Adam(parameters, lr=1e-3)

    def work() -> Tensor:
        optimiser.zero_grad()
        logits_NV = model(batch.tokens_BT).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits_NV, batch.targets_BT.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = _embedding_gradient(model)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        return gradient

    return work


def _embedding_gradient(model: nn.Module) -> Tensor:
    embedding = next(m for m in model.modules() if isinstance(m, nn.Embedding))
    assert embedding.weight.grad is not None
    return embedding.weight.grad


def _gradient(work: Work) -> Tensor:
    """A copy: what follows may change it in place."""
    gradient: Tensor = work()
    return gradient.clone()


def _sampled(model: LanguageModel, size: Size) -> None:
    config = DecodeConfig(max_tokens=size.num_steps, seed=1)
    for _ in sample(model, [[]], config, boundary_id=0):
        pass


@torch.no_grad()
def _read(model: LanguageModel, size: Size) -> Tensor:
    """Log probabilities of what follows a text, read token by token."""
    state = model.initial_state(1)
    logprobs_BV = torch.empty(0)
    for token_B in _tokens(size)[:, :-1].t():
        logprobs_BV, state = model.step(token_B, state)
    return logprobs_BV


# Measuring


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def _errors(
    results: Mapping[str, Tensor], exact: Tensor, *, only_ours: bool = False
) -> dict[str, float]:
    """Each result's distance from the exact one."""
    return {
        name: _distance(result, exact)
        for name, result in results.items()
        if name == "ours" or not only_ours
    }


def _measured(tasks: Mapping[str, Work], repeat: int) -> dict[str, Any]:
    costs = interleaved({name: timed(work) for name, work in tasks.items()}, repeat)
    return {name: median(cost) for name, cost in costs.items()}


def _row(
    name: str,
    better: Callable[..., Row],
    costs: Mapping[str, Any],
    errors: Mapping[str, float],
    size: Size,
    *,
    unit: str,
    factor: float,
    **settings: Any,
) -> Row:
    """A row of what was measured, in `unit`: seconds times a factor, or a factor over seconds."""
    ours, peer = costs["ours"], costs["peer"]
    figures = [
        cost.seconds * factor if better is less_is_better else factor / cost.seconds
        for cost in (ours, peer)
    ]
    row = better(
        name,
        *figures,
        unit,
        **vars(size),
        **settings,
        threads=torch.get_num_threads(),
        cpu_time_ratio=peer.cpu_seconds / max(ours.cpu_seconds, 1e-9),
    )
    return replace(row, error=errors.get("ours"), peer_error=errors.get("peer"))
