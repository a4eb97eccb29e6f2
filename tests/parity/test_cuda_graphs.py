"""Updates replayed from CUDA graphs give what ordinary ones give, for every task with sentences."""

from __future__ import annotations

import copy
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elman
from elman import testing
from elman.base.config import parse_overrides
from elman.decode.beam_on_device import graphs_of
from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.models.recurrent import RecurrentLMConfig
from elman.nn.graphed import GraphedUpdate
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.serve.prefixes import PrefixCache
from elman.serve.stream_batch import StreamBatch
from elman.serve.streams import Continuation, Stream
from small_tasks import TASKS, both, translator, updates
from tiny_models import TINY

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _exact_products() -> Any:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def made(name: str) -> Any:
    torch.manual_seed(0)
    if name.startswith("classifier"):
        model, objective, make = TASKS[name](device="cuda")
    else:
        model, objective, make = TASKS[name]()
    return model.to(DEVICE), objective, make


@pytest.mark.parametrize("name", TASKS)
def test_replayed_equals_ordinary(name: str) -> None:
    random = np.random.default_rng(3)
    orders = [random.choice(5, 1 + n % 3, replace=False).tolist() for n in range(60)]
    figures = []
    for replayed in (False, True):
        model, objective, make = made(name)
        advance = updates(model.eval(), objective)
        if replayed:
            advance = GraphedUpdate(advance, None, DEVICE)
        batches = [both(make(order))[replayed].to("cuda") for order in orders]
        found = [advance(batch, None)[0][0] for batch in batches]
        figures.append(torch.stack(found).cpu())
    assert advance.problem is None
    assert advance.num_replayed > 20
    torch.testing.assert_close(figures[1], figures[0], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["tagger, crf", "classifier", "elmo", "translator, input feeding"])
def test_dropout_is_drawn_anew_by_every_replay(name: str) -> None:
    model, objective, make = made(name)

    def update(batch: Any, state: Any) -> Any:
        return (objective(batch, None).nats,), None

    advance = GraphedUpdate(update, None, DEVICE)
    batch = both(make([1, 2, 3]))[1].to("cuda")
    model.train()
    values = {float(advance(batch, None)[0][0]) for _ in range(12)}
    assert advance.num_replayed == 9
    assert len(values) > 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_with_input_feeding_on_triton(dtype: torch.dtype) -> None:
    found = []
    for device, kernel in (("cpu", torch.float32), ("cuda", dtype)):
        torch.manual_seed(0)
        model, objective, make = translator()
        model.to(device).eval()
        with torch.autocast("cuda", torch.bfloat16, enabled=kernel == torch.bfloat16):
            outcome = objective(make([1, 2, 3]).to(device), None)
        outcome.loss.backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        found.append([outcome.loss.detach().cpu(), *gradients])
    close = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.02}
    torch.testing.assert_close(found[1], found[0], **close)


def test_a_run_says_how_its_updates_ran(tmp_path: Path) -> None:
    lines = testing.TOY_TEXT.splitlines()
    source, target = tmp_path / "toy.en", tmp_path / "toy.ne"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    target.write_text("".join(" ".join(line.split()[::-1]) + "\n" for line in lines))
    for graphs in ("true", "false"):
        settings = ["tokenizer.kind=word", "training.batch_size=8", f"training.cuda_graph={graphs}"]
        config = resolve(
            "translator",
            [str(source), str(target)],
            settings=parse_overrides(settings),
            steps=80,
            device="cuda",
        ).config
        *_, last = train(config, tmp_path / graphs, device="cuda")
        assert last.summary is not None
        kernels = last.summary["kernels"]
        if graphs == "true":
            assert "replayed from CUDA graphs" in kernels["updates"]
            translated: Any = elman.load(tmp_path / graphs, device="cuda")
            assert isinstance(translated.translate(lines[0]), str)
        else:
            assert "updates" not in kernels


@pytest.mark.parametrize("num_rows", [1, 5, 64])
@pytest.mark.parametrize(
    "settings",
    [
        {"greedy": True},
        {"seed": 1},
        {"seed": 1, "temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
        {"seed": 1, "presence_penalty": 0.5, "logit_bias": {3: -inf, 4: 1.0}},
    ],
)
def test_replayed_streams(num_rows: int, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = testing.build(RecurrentLMConfig(num_layers=2, hidden_size=64)).double().eval()
    said = []
    for one in (model, copy.deepcopy(model).to(DEVICE)):
        batch = StreamBatch(one, boundary_id=2, max_streams=num_rows, cache=PrefixCache(1 << 20))
        streams = [
            Stream(Continuation(prompt=(1, 2, row % 9), config=DecodeOptions(**some)))
            for row in range(num_rows)
            for some in [{"max_tokens": 60 + row % 3, **settings}]
        ]
        for stream in streams:
            batch.add(stream)
        while not batch.is_idle:
            batch.advance()
        said.append([stream.tokens for stream in streams])
    assert said[0] == said[1]
    assert batch.steps is not None
    assert batch.steps.problem is None
    assert batch.steps.num_replayed > batch.steps.num_calls // 2


def test_replayed_beams() -> None:
    """The same shapes again and again give what the CPU gives."""
    model = testing.build(TINY["input feeding"]).eval()
    device_model = copy.deepcopy(model).to(DEVICE)
    options = DecodeOptions(beam_size=4, num_samples=2, coverage_penalty=0.2, logit_bias={1: -inf})
    limits = [30, 5, 9, 24, 30]
    for seed in range(6):
        source_BS = testing.some_tokens(5, 6, seed=seed)
        mask_BS = torch.arange(6) < torch.tensor([[6], [2], [4], [1], [6]])
        found = []
        for one, device in ((model, torch.device("cpu")), (device_model, DEVICE)):
            with torch.no_grad():
                state = one.condition(source_BS.to(device), mask_BS.to(device))
            found.append(decode(one, state, options, boundary_id=2, limits=limits))
        for here, there in zip(*found, strict=True):
            assert [one.tokens for one in here] == [one.tokens for one in there]
            for ours, theirs in zip(here, there, strict=True):
                assert ours.score == pytest.approx(theirs.score, abs=1e-4)
    graphs = graphs_of(device_model, DEVICE)
    assert graphs is not None
    assert graphs.problem is None
    assert graphs.num_replayed > 0
