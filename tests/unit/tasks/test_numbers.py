"""Every numeric setting of every task has a least value, and none may be NaN or infinite."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from elman.base.config import from_dict, nested
from elman.base.errors import UsageError
from elman.base.tables import look_up
from elman.tasks import built_in_tasks, task_named

NEGATIVE = {"format", "forget_bias", "cutoffs"}
"""May be negative, or are checked later: cutoffs against the vocabulary, the format on opening."""


def numbers(cls: type[Any], where: str = "") -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the numeric settings of a config, each with the kinds that it needs."""
    hints = typing.get_type_hints(cls)
    for f in fields(cls):
        path = f"{where}{f.name}"
        inner = hints[f.name]
        if table := f.metadata.get("table"):
            for kind in table:
                for name, kinds in numbers(look_up(table, kind, f.name), f"{path}."):
                    yield name, {**kinds, f"{path}.kind": kind}
        elif isinstance(inner, type) and is_dataclass(inner):
            yield from numbers(inner, f"{path}.")
        elif {int, float} & {inner, *_members(inner)}:
            yield path, {}


def _members(hint: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(hint)
    return typing.get_args(hint) if origin in (typing.Union, types.UnionType, tuple) else ()


@pytest.mark.parametrize("task", [task.name for task in built_in_tasks()])
def test_numbers_out_of_range_are_refused(task: str) -> None:
    cls = task_named(task).config_class
    accepted = []
    for name, kinds in numbers(cls):
        values = [math.nan, math.inf]
        if name.rpartition(".")[2] not in NEGATIVE:
            values.append(-1)
        for value in values:
            try:
                from_dict(cls, nested({**kinds, name: value}))
            except UsageError:
                continue
            accepted.append((name, value))
    assert not accepted


@pytest.mark.parametrize(
    "settings",
    [
        {"optimiser.kind": "sgd", "optimiser.dampening": -1},
        {"schedule.kind": "decay", "schedule.decay_after": -1},
        {"schedule.kind": "decay", "schedule.factor": -1},
        {"schedule.kind": "plateau", "schedule.patience": -1},
        {"objective.regime": "minimum_risk", "objective.sharpness": -1},
        {"objective.regime": "professor_forcing", "objective.judge_weight": -1},
    ],
)
def test_settings_of_a_chosen_kind_are_checked_too(settings: dict[str, Any]) -> None:
    *_, name = settings
    with pytest.raises(UsageError, match=f"{name.rpartition('.')[2]} cannot be -1"):
        from_dict(task_named("lm").config_class, nested(settings))
