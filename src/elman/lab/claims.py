"""The table of experiments, in the order of the claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elman.base.errors import UsageError, nearest
from elman.base.tables import imported
from elman.lab.experiment import Experiment

CLAIMS: Mapping[str, str] = {
    "C1": "elman.lab.c01_gradients:EXPERIMENT",
    "C3": "elman.lab.c03_gates:EXPERIMENT",
    "C10": "elman.lab.c10_directions:EXPERIMENT",
    "C11": "elman.lab.c11_pooling:EXPERIMENT",
    "C12": "elman.lab.c12_attention:EXPERIMENT",
    "C13": "elman.lab.c13_layers:EXPERIMENT",
    "C17": "elman.lab.c17_pretraining:EXPERIMENT",
}


def experiment_named(id: str) -> Experiment:
    """The experiment of a claim, by its number in any case."""
    place = CLAIMS.get(id.upper())
    if place is None:
        raise UsageError(f"there is no claim '{id}'", nearest(id.upper(), CLAIMS))
    found: Any = imported(place)
    assert isinstance(found, Experiment)
    return found


def experiments() -> Iterator[Experiment]:
    return map(experiment_named, CLAIMS)
