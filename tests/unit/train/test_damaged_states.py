"""A train state whose content is wrong, though its checksums fit, is refused with a sentence."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import ElmanError
from elman.train import checkpoint
from elman.train.files import STATE_FILE
from elman.train.optimisers import OptimiserConfig
from elman.train.trainable import Validation

OTHERS = [None, "x", [], {}, [[]], True, -1, 1.5, math.nan, math.inf, 10**400, 1 << 62]


@pytest.fixture(params=["adam", "asgd"])
def state(request, bench) -> Path:
    """The state of a run that was stopped after 6 of 7 updates."""
    bench.change(steps=6, validate_every=2, batch_size=2)
    losses = itertools.count(1.0)
    task = bench.task(validate=lambda limit: Validation(next(losses), None, 9), sample=None)
    if request.param == "asgd":
        bench.optimiser = OptimiserConfig(
            kind="asgd", learning_rate=0.1, momentum=0.5, non_monotone_interval=0
        )
    list(bench.fit(task=task))
    bench.change(steps=7)
    path: Path = bench.folder / "run" / STATE_FILE
    tensors, _ = checkpoint.read(path)
    assert ("average.count" in tensors) == (request.param == "asgd")
    return path


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path to every entry of a header."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else ():
        yield from places(value[key], (*path, key))


def with_entry(header: dict[str, Any], path: tuple[str, ...], *value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(header)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    if value:
        inside[path[-1]] = value[0]
    else:
        del inside[path[-1]]
    return changed


def resumes(bench) -> bool:
    """Whether the run goes on to its end; otherwise it is refused with a sentence."""
    try:
        list(bench.fit(resume=True))
    except ElmanError as error:
        return not error.hint
    return True


def test_other_headers_are_refused(bench, state: Path) -> None:
    tensors, header = checkpoint.read(state)
    assert resumes(bench)
    random = Random(0)
    refused = 0
    for path in places(header):
        for value in ((), *((other,) for other in random.sample(OTHERS, 2))):
            checkpoint.write(state, tensors, with_entry(header, path, *value))
            refused += not resumes(bench)
    assert refused > 40


def variants(name: str, tensors: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    tensor = tensors[name]
    yield {other: tensors[other] for other in tensors if other != name}
    yield {**tensors, f"{name}.x": tensor}
    yield {**tensors, name: tensor[None]}
    yield {**tensors, name: torch.cat([tensor.flatten(), tensor.flatten()])}
    yield {**tensors, name: tensor.flatten()[:0]}
    yield {**tensors, name: tensor.to(torch.int16)}
    yield {**tensors, name: torch.full_like(tensor, math.nan if tensor.is_floating_point() else 9)}


def test_other_tensors_are_refused(bench, state: Path) -> None:
    random = Random(1)
    tensors, header = checkpoint.read(state)
    for name in tensors:
        for number, changed in enumerate(variants(name, tensors)):
            if number and random.random() < 0.75:
                continue
            checkpoint.write(state, changed, header)
            gone_on = resumes(bench)
            assert not gone_on or name in ("random.cpu", "average.count"), number
    for group in ("model", "optimiser", "random"):
        some = {name: t for name, t in tensors.items() if not name.startswith(f"{group}.")}
        checkpoint.write(state, some, header)
        assert not resumes(bench) or group == "optimiser"
