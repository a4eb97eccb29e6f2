"""Whatever its own description allows, and much that it does not, the server answers in good
order: no 5xx, and every answer of the form that the description says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from live import serving
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from elman import api
from elman.serve.limits import Limits


@pytest.fixture(scope="module")
def description(words: Path) -> Iterator[schemathesis.BaseSchema]:
    limits = Limits(max_tokens=16, max_choices=8)
    with serving({"words": api.load(words)}, limits=limits, runs=words.parent) as live:
        yield schemathesis.openapi.from_url(f"{live.address}/openapi.json")


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


# The library draws from the global generator while hypothesis watches.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
def test_the_description_holds(description: schemathesis.BaseSchema) -> None:
    operations = [found.ok() for found in description.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try_out(operation.as_strategy(generation_mode=mode))


def try_out(cases: SearchStrategy[schemathesis.Case]) -> None:
    @given(case=cases)
    @settings(
        max_examples=10,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def test(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    with contextlib.suppress(Unsatisfiable):  # nothing could be wrong with such a request
        test()
