"""What CUDA graphs capture waits for nothing, and a capture that fails leaves nothing behind.

Without a GPU: see stand_ins.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elman import testing
from elman.batches.batch import Batch
from elman.models import dynamic
from elman.models.dynamic import Dynamic, GradientScale
from elman.models.recurrent import RecurrentLM
from elman.nn import graphed
from elman.nn.graphed import CudaCapture, GraphedUpdate
from elman.nn.kernels import planners, wave
from elman.nn.kernels.persistent_tiling import H200
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.regimes import training_objective
from elman.train.gradients import clip
from small_tasks import TASKS, both
from stand_ins import DEVICE, Repeat, no_waiting
from tiny_models import TINY

WAITS = (NotImplementedError, RuntimeError, AssertionError)
LANGUAGE_MODELS = [
    name for name, config in TINY.items() if isinstance(testing.build(config), RecurrentLM)
]
WAITING = {"character cnn", "adaptive", "adaptive tied", "sampled softmax", "nce", "blackout"}
WAITING |= {"sampled tied", "sampled and maxent"}
"""Updates that look at the batch on the host: which words, which clusters, which samples."""


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: 1 if x.sum() > 0 else 0,
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x[[0, 1]],
        lambda x: x.copy_(torch.ones(3)),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: torch.as_tensor(1.0, device=x.device),
        lambda x: x + torch.ones(3),
    ],
)
def test_the_stand_in_refuses_to_wait(work: Callable[[Any], Any]) -> None:
    with pytest.raises(WAITS), no_waiting():
        work(torch.ones(3, device=DEVICE))


def test_the_stand_in_allows_the_rest() -> None:
    x = torch.ones(3, 3, device=DEVICE, requires_grad=True)
    with no_waiting():
        assert x.is_cuda
        rows = torch.arange(2, device=x.device)
        (x[rows] * 2.0 + torch.zeros(())).where(x[:2] > 0, 0.0).sum().backward()


@pytest.mark.parametrize("name", TASKS)
def test_updates_of_sentences(name: str) -> None:
    where = {"device": "meta"} if name.startswith("classifier") else {}
    model, objective, make = TASKS[name](**where)
    model.to(DEVICE).train()
    batch = both(make([1, 2, 3]))[1].to("meta")
    with no_waiting():
        outcome = objective(batch, None)
        outcome.loss.backward()
    assert outcome.nats.is_meta


def language_model(name: str, **settings: Any) -> tuple[Any, Any, Batch]:
    model = testing.build(TINY[name]).to(DEVICE).train()
    objective = training_objective(RegimeConfig(**settings), model)
    tokens_BT = torch.zeros(4, 7, dtype=torch.long, device=DEVICE)
    return model, objective, Batch(tokens_BT, tokens_BT)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_updates_and_steps_of_language_models(name: str) -> None:
    model, objective, batch = language_model(name)

    def update() -> None:
        with no_waiting():
            objective(batch, model.initial_state(4)).loss.backward()
            clip([p for p in model.parameters() if p.requires_grad], 0.25)

    if name in WAITING:
        with pytest.raises(WAITS):
            update()
    else:
        update()
    if name != "character cnn":
        with no_waiting(), torch.no_grad():
            model.eval().step(batch.tokens_BT[:, 0], model.initial_state(4))


def test_smoothed_and_regularised_losses() -> None:
    settings = {"label_smoothing": 0.1, "activation_penalty": 2.0, "change_penalty": 1.0}
    model, objective, batch = language_model("regularised", **settings)
    with no_waiting():
        objective(batch, model.initial_state(4)).loss.backward()


@pytest.mark.parametrize("name", ["lstm", "tied", "mogrified", "mixture tied", "rnn and maxent"])
def test_segments_of_dynamic_evaluation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def update_of(update: Any, *others: Any, **settings: Any) -> Any:
        return update

    monkeypatch.setattr(dynamic, "GraphedUpdate", update_of)
    monkeypatch.setattr(dynamic._GraphedLearner, "serves", lambda weights: True)
    monkeypatch.setattr(GradientScale, "mean", 1.0)
    model, _, batch = language_model(name)
    scale = GradientScale({name: torch.ones_like(p) for name, p in model.named_parameters()})
    learner: Any = Dynamic(model, scale)._learner
    with no_waiting(), torch.no_grad():
        learner._learn_batch(batch.rows(slice(1)), model.initial_state(1))


def test_a_segment_of_a_mogrifier_is_one_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is captured: launches of Triton, which are counted, and what surrounds them."""
    pytest.importorskip("triton")
    launches: list[str] = []
    monkeypatch.setattr(
        wave.CompiledLaunch,
        "__call__",
        lambda self, *arguments: launches.append(self.function.__name__),
    )
    monkeypatch.setattr(planners, "runs_on", lambda device: True)
    for module in (planners, wave):
        monkeypatch.setattr(module, "chip_of", lambda index: H200)
        monkeypatch.setattr(module, "index_of", lambda device: -1)  # no real one: plans are kept
    monkeypatch.setattr(dynamic, "GraphedUpdate", lambda update, *others, **settings: update)
    monkeypatch.setattr(dynamic._GraphedLearner, "serves", lambda weights: True)
    monkeypatch.setattr(GradientScale, "mean", 1.0)
    config = replace(TINY["mogrified"], embedding_size=12, tied=True, sum_layers=True)
    model = testing.build(replace(config, kernel="wave")).to(DEVICE).eval()
    scale = GradientScale({name: torch.ones_like(p) for name, p in model.named_parameters()})
    learner: Any = Dynamic(model, scale)._learner
    tokens_15 = torch.zeros(1, 5, dtype=torch.long, device=DEVICE)
    with no_waiting(), torch.no_grad():
        learner._learn_batch(Batch(tokens_15, tokens_15), model.initial_state(1))
    # Two layers are six slots of five steps; a round is two launches in either direction.
    slots, rounds = 6, config.mogrify_rounds
    assert len(launches) == slots * (2 * rounds + 1) + slots * (2 * rounds + 2)


class Stream(str):
    __slots__ = ()

    def wait_stream(self, other: str) -> None: ...


class Cuda:
    """What torch does around a capture; see `CudaCapture._recover`."""

    def __init__(self) -> None:
        self.current, self.is_drawing_refused = Stream("main"), False
        self.pools: list[Any] = []
        self.CUDAGraph = SimpleNamespace

    def Stream(self) -> Stream:  # noqa: N802
        return Stream("side")

    def current_stream(self) -> Stream:
        return self.current

    def current_device(self) -> int:
        return 0

    def synchronize(self) -> None: ...

    def graph_pool_handle(self) -> tuple[int, int]:
        return 0, len(self.pools) + 1

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(
        self, graph: Any, pool: Any, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        assert pool not in self.pools, "already recording to the pool"
        before, self.current = self.current, stream
        self.pools.append(pool)
        self.is_drawing_refused = True
        try:
            yield
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
        self.current, self.is_drawing_refused = before, False
        self.pools.remove(pool)
        graph.replay = lambda: None


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    binding = SimpleNamespace(
        _cuda_endAllocateToPool=lambda device, pool: fake.pools.remove(pool),
        _cuda_releasePool=lambda device, pool: None,
    )
    torch_like = SimpleNamespace(cuda=fake, _C=binding, zeros=torch.zeros, clone=torch.clone)
    monkeypatch.setattr(graphed, "torch", torch_like)
    return fake


def test_a_failed_capture_leaves_nothing_behind(cuda: Cuda) -> None:
    def waits() -> None:
        assert cuda.current == "side"
        raise RuntimeError("operation not permitted when stream is capturing")

    capture = CudaCapture(torch.device("cpu"))
    with pytest.raises(RuntimeError):
        capture.record(waits)
    assert (cuda.current, cuda.pools, cuda.is_drawing_refused) == ("main", [], False)
    capture.record(lambda: None)()
    assert (cuda.current, cuda.pools, cuda.is_drawing_refused) == ("main", [], False)


def test_the_first_error_is_named(cuda: Cuda) -> None:
    def update(batch: Batch, state: Any) -> Any:
        if cuda.current == "side" and cuda.pools:
            raise RuntimeError("not permitted when capturing\nat ...")
        return (torch.zeros(()),), None

    advance = GraphedUpdate(update, None, torch.device("cpu"))
    tokens_BT = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(6):
        advance(Batch(tokens_BT, tokens_BT), None)
    assert advance.describe() == "not replayed from a CUDA graph: not permitted when capturing"


def test_released_graphs_are_still_counted() -> None:
    advance = GraphedUpdate(
        lambda batch, state: ((torch.zeros(()),), None), None, torch.device("cpu"), Repeat()
    )
    tokens_BT = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(6):
        advance(Batch(tokens_BT, tokens_BT), None)
    told = advance.describe()
    advance.release()
    assert not advance.captured
    assert advance.describe() == told == "3 of 6 replayed from CUDA graphs of 1 shapes"
