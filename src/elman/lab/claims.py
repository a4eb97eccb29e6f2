"""The table of experiments, in the order of the claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elman.base.errors import UsageError, nearest
from elman.base.tables import imported
from elman.lab.experiment import Experiment
from elman.lab.verdicts import FAILS, HOLDS, UNKNOWN, Verdict

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

PUBLISHED: Mapping[str, Verdict] = {
    "C1": HOLDS,
    "C2": FAILS,
    "C3": HOLDS,
    "C4": HOLDS,
    "C5": HOLDS,
    "C6": UNKNOWN,
    "C7": FAILS,
    "C8": HOLDS,
    "C9": FAILS,
    "C10": HOLDS,
    "C11": UNKNOWN,
    "C12": HOLDS,
    "C13": FAILS,
    "C14": FAILS,
    "C15": HOLDS,
    "C16": FAILS,
    "C17": UNKNOWN,
    "D1": HOLDS,
    "D2": HOLDS,
    "D3": UNKNOWN,
    "D4": HOLDS,
    "D5": HOLDS,
    "D6": FAILS,
}
"""The verdicts in the README and docs/lab: five seeds on two cores."""


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
