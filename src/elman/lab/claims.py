"""The table of experiments, in the order of the claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elman.base.errors import UsageError, nearest
from elman.base.tables import imported
from elman.lab.experiment import Experiment

CLAIMS: Mapping[str, str] = {
    "C1": "elman.lab.c01_gradients:EXPERIMENT",
    "C2": "elman.lab.c02_span:EXPERIMENT",
    "C3": "elman.lab.c03_gates:EXPERIMENT",
    "C4": "elman.lab.c04_gru:EXPERIMENT",
    "C5": "elman.lab.c05_sparsity:EXPERIMENT",
    "C6": "elman.lab.c06_sharing:EXPERIMENT",
    "C7": "elman.lab.c07_models:EXPERIMENT",
    "C8": "elman.lab.c08_sizes:EXPERIMENT",
    "C9": "elman.lab.c09_depth:EXPERIMENT",
    "C10": "elman.lab.c10_directions:EXPERIMENT",
    "C11": "elman.lab.c11_pooling:EXPERIMENT",
    "C12": "elman.lab.c12_attention:EXPERIMENT",
    "C13": "elman.lab.c13_layers:EXPERIMENT",
    "C14": "elman.lab.c14_regimes:EXPERIMENT",
    "C15": "elman.lab.c15_decoding:EXPERIMENT",
    "C16": "elman.lab.c16_parallel:EXPERIMENT",
    "C17": "elman.lab.c17_pretraining:EXPERIMENT",
    "D1": "elman.lab.d01_truncation:EXPERIMENT",
    "D2": "elman.lab.d02_data:EXPERIMENT",
    "D3": "elman.lab.d03_depth:EXPERIMENT",
    "D4": "elman.lab.d04_cache:EXPERIMENT",
    "D5": "elman.lab.d05_parity:EXPERIMENT",
    "D6": "elman.lab.d06_counting:EXPERIMENT",
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
