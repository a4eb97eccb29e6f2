"""Measure whole training steps beside the same model in plain torch: tokens per second.

On the CPU with output layer, clipping and Adam. On a GPU an AWD-LSTM in bfloat16 with its dropouts,
penalties and clipping.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from elman.base.processor import processor_name
from elman.batches.batch import Batch
from elman.bench import recurrent
from elman.bench.measuring import Cost, Work, in_turns
from elman.bench.rows import Row
from elman.bench.sizes import CellName, Size
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.graphed import Figures, GraphedUpdate
from elman.nn.heads.full import FullConfig
from elman.nn.heads.sampled import SampledConfig
from elman.nn.layer import halves_pay
from elman.nn.state import State
from elman.objectives.likelihood import likelihood
from elman.objectives.objective_config import LikelihoodConfig
from elman.train.gradients import clip
from elman.train.optimisers import OptimiserConfig, build

LARGE_VOCABULARY = 10_000
"""From this vocabulary on a sampled softmax is measured too."""


def on_cpu(cells: Sequence[CellName], sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    """One row per cell and size, as `training.precision=auto` computes it, beside the faster of the
    peers in float32 and bfloat16; another one in float32 if that is not what auto chooses.

    With a large vocabulary there is another one with a sampled softmax. Its peer has the full
    softmax: a different objective for the same model, so the row has no error.
    """
    for cell, size in product(cells, sizes):
        torch.manual_seed(0)
        model, tokens_BT = recurrent.language_model(cell, size), recurrent.random_tokens(size)
        batch = Batch(tokens_BT[:, :-1], tokens_BT[:, 1:], None, True)
        peer, peer_cell = recurrent.PlainModel.beside(cell, size)
        half = halves_pay(model, size.batch_size, size.num_steps)
        works = {
            "ours": _our_step(model, batch, half),
            "float32": _plain_step(peer, batch, half=False),
            "bfloat16": _plain_step(copy.deepcopy(peer), batch, half=True),
            "products": recurrent.large_product(torch.bfloat16 if half else torch.float32),
        }
        ours, kernel = recurrent.run_and_name(works["ours"], model)
        first = {"ours": ours.clone(), "peer": works["float32"]().clone()}
        works["bfloat16"]()
        if half:
            works["ours, float32"] = _our_step(copy.deepcopy(model), batch, half=False)
            works["float32 products"] = recurrent.large_product(torch.float32)
        if size.vocab_size >= LARGE_VOCABULARY:
            sampled = recurrent.language_model(cell, size, SampledConfig(num_samples=1024))
            works["sampled"] = _our_step(sampled, batch, half)
            works["sampled"]()
        costs = in_turns(works, repeat)
        # float64 comes last: memory that it frees would speed up the timed allocations.
        exact_model = recurrent.in_float64(recurrent.language_model(cell, size))
        exact = _our_step(exact_model, batch, half=False)()
        errors = {
            name: recurrent.distance(gradient / gradient.norm(), exact / exact.norm())
            for name, gradient in first.items()
            if name == "ours" or peer_cell == cell
        }
        better = min(("float32", "bfloat16"), key=lambda name: costs[name].seconds)
        about: dict[str, Any] = {
            "processor": processor_name(),
            "kernel": kernel,
            "dtype": "bfloat16" if half else "float32",
            "beside": f"nn.{peer_cell.upper()} in {better}",
        }
        name, work = f"{cell} training step", recurrent.step_products(model, size)

        about |= _share(work, costs["ours"], costs["products"])
        yield recurrent.token_row(name, costs["ours"], costs[better], size, errors, **about)
        if half:
            about |= {"dtype": "float32", "beside": f"nn.{peer_cell.upper()} in float32"}
            about |= _share(work, costs["ours, float32"], costs["float32 products"])
            ours_cost, peer_cost = costs["ours, float32"], costs["float32"]
            yield recurrent.token_row(f"{name}, float32", ours_cost, peer_cost, size, {}, **about)
        if "sampled" in costs:
            name += ", sampled softmax"
            about = {key: about[key] for key in ("processor", "kernel")}
            about |= {"beside": f"nn.{peer_cell.upper()} in {better}, full softmax"}
            yield recurrent.token_row(name, costs["sampled"], costs[better], size, {}, **about)


def scoring(cells: Sequence[CellName], sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    """The loss of a batch without gradients. For each cell and size a row in float32, as `elman
    evaluate` computes it, and one under autocast to bfloat16; each beside the peer in the same."""
    for cell, size in product(cells, sizes):
        model, tokens_BT = (
            recurrent.language_model(cell, size).eval(),
            recurrent.random_tokens(size),
        )
        batch = Batch(tokens_BT[:, :-1], tokens_BT[:, 1:], None, True)
        peer, peer_cell = recurrent.PlainModel.beside(cell, size)
        works: dict[str, Work] = {}
        for dtype in ("float32", "bfloat16"):
            half = dtype == "bfloat16"
            works[dtype] = torch.no_grad()(_our_loss(model, batch, half))
            works[f"peer, {dtype}"] = torch.no_grad()(_plain_loss(peer, batch, half))
        kernels = {name: recurrent.run_and_name(works[name], model)[1] for name in works}
        costs = in_turns(works, repeat)
        for dtype in ("float32", "bfloat16"):
            about = {
                "processor": processor_name(),
                "kernel": kernels[dtype],
                "dtype": dtype,
                "beside": f"nn.{peer_cell.upper()} in {dtype}",
            }
            ours, theirs = costs[dtype], costs[f"peer, {dtype}"]
            yield recurrent.token_row(f"{cell} scoring, {dtype}", ours, theirs, size, {}, **about)


def on_gpu(sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    """Ours is the step of `elman train`; the peer uses torch's layers, without and with graph."""
    for size in sizes:
        ours, kernel = _awd_step(size, "auto", graphed=True)
        works = {
            "ours": ours,
            "peer": _awd_step(size, "torch", graphed=False)[0],
            "graphed peer": _awd_step(size, "torch", graphed=True)[0],
        }
        costs = in_turns(works, repeat, recurrent.by_the_gpu_clock)
        about = {"dtype": "bfloat16", "kernel": kernel, "beside": "nn.LSTM"}
        for title, peer in (("", "peer"), (", both graphed", "graphed peer")):
            name = f"AWD-LSTM training step{title}"
            yield recurrent.token_row(name, costs["ours"], costs[peer], size, {}, **about)


def _share(work: int, step: Cost, large: Cost) -> dict[str, float]:
    """The rate of a product of large matrices, and the share of it that a step's products reach."""
    rate = recurrent.LARGE_PRODUCTS / large.seconds
    return {"share": work / step.seconds / rate, "large_product_gflops": 2e-9 * rate}


def _our_step(model: RecurrentLM, batch: Batch, half: bool) -> Work:
    parameters = list(model.parameters())
    optimiser = build(OptimiserConfig(learning_rate=1e-3), parameters)
    limit = partial(clip, parameters, 1.0, optimiser)
    return _step(model, _our_loss(model, batch, half), limit, optimiser)


def _our_loss(model: RecurrentLM, batch: Batch, half: bool) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=False):
            return likelihood(LikelihoodConfig(), model, batch, None).loss

    return loss


def _plain_step(model: recurrent.PlainModel, batch: Batch, half: bool) -> Work:
    """The step of a torch user, in bfloat16 by autocast: weights that are bfloat16 themselves would
    be a little faster, but lose small updates.
    """
    parameters = list(model.parameters())
    limit = partial(nn.utils.clip_grad_norm_, parameters, 1.0)
    optimiser = torch.optim.Adam(parameters, lr=1e-3)
    return _step(model, _plain_loss(model, batch, half), limit, optimiser)


def _plain_loss(model: recurrent.PlainModel, batch: Batch, half: bool) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits_NV = model(batch.tokens_BT).flatten(0, 1)
            return nn.functional.cross_entropy(logits_NV, batch.targets_BT.flatten())

    return loss


def _step(
    model: nn.Module,
    loss: Callable[[], Tensor],
    limit: Callable[[], object],
    optimiser: torch.optim.Optimizer,
) -> Work:
    """A training step; the result is the gradient of the embedding, clipped or not."""
    embedding = next(m for m in model.modules() if isinstance(m, nn.Embedding))

    def work() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]
        limit()
        optimiser.step()
        assert embedding.weight.grad is not None
        return embedding.weight.grad

    return work


def _awd_step(size: Size, kernel: str, *, graphed: bool) -> tuple[Work, str]:
    """A training step of an AWD-LSTM on a fixed batch, and the name of its kernel."""
    torch.manual_seed(0)
    config = RecurrentLMConfig(
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
    lm = config.build(size.vocab_size).cuda().train()
    parameters = list(lm.parameters())
    optimiser = build(OptimiserConfig(kind="sgd", learning_rate=1.0), parameters)
    objective = LikelihoodConfig(activation_penalty=2.0, change_penalty=1.0)
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

    def warm_up() -> None:
        for _ in range(6):  # initialise libraries, capture the graph
            work()

    return work, recurrent.run_and_name(warm_up, lm)[1]
