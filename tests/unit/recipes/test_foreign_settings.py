"""A setting that a task does not read is refused, with the tasks that do read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.config import UnknownSetting, flat, from_dict, merge, nested
from elman.base.errors import UsageError
from elman.recipes.resolve import resolve, settings_of
from elman.tasks import TASKS, task_named
from elman.testing import TOY_TEXT, TOY_TREEBANK

SETTINGS = {name: frozenset(settings_of(task_named(name))) for name in TASKS}


def foreign() -> list[tuple[str, str, str]]:
    """(task, setting that it does not have, another task that has it)"""
    return [
        (task, setting, other)
        for task in TASKS
        for other in TASKS
        for setting in sorted(SETTINGS[other] - SETTINGS[task])
        if other != task
    ]


def test_there_is_something_to_refuse() -> None:
    assert len(foreign()) > 1000


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_of_every_other_task_is_refused(task: str) -> None:
    config = task_named(task).config_class
    for here, setting, _ in foreign():
        if here == task:
            with pytest.raises(UnknownSetting, match=setting):
                from_dict(config, nested({setting: 1}))


@given(st.sampled_from(foreign()))
@settings(max_examples=30)
def test_the_refusal_says_which_tasks_have_the_setting(case: tuple[str, str, str]) -> None:
    task, setting, other = case
    with pytest.raises(UsageError, match=setting) as error:
        resolve(task, ["python-docs"], settings={setting: 1})
    assert other in (error.value.hint or "")


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_of_its_own_is_known(task: str) -> None:
    config = task_named(task).config_class
    for setting in SETTINGS[task]:
        try:
            from_dict(config, nested({setting: object()}))
        except UnknownSetting as error:
            raise AssertionError(f"{setting} is listed but not known") from error
        except UsageError:
            pass  # the value is wrong, the name is known


@pytest.mark.parametrize(
    ("task", "setting", "value"),
    [
        ("tagger", "objective.regime", "self_critical"),
        ("tagger", "tokenizer.kind", "bpe"),
        ("tagger", "data.num_folds", 5),
        ("tagger", "training.vary_chunks", True),
        ("lm", "data.column", "upos"),
        ("lm", "objective.class_weights", "balanced"),
        ("lm", "data.max_length", 100),
    ],
)
def test_settings_that_used_to_be_swallowed(
    task: str, setting: str, value: Any, tmp_path: Path
) -> None:
    file = tmp_path / "data.txt"
    file.write_text(TOY_TREEBANK if task == "tagger" else TOY_TEXT)
    with pytest.raises(UsageError, match=setting):
        resolve(task, [str(file)], settings={setting: value})


def test_a_name_that_many_groups_have_proposes_no_other_group() -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.kind") as error:
        resolve("tagger", ["python-docs"], settings={"tokenizer.kind": "bpe"})
    assert "optimiser" not in error.value.hint
    assert error.value.hint.endswith(
        "tokenizer.lowercase, tokenizer.min_count, tokenizer.vocab_size"
    )


@pytest.mark.parametrize("setting", ["class_weights", "data.class_weights"])
def test_a_setting_without_its_group_is_found_in_another_task(setting: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve("lm", ["python-docs"], settings={setting: "balanced"})
    assert error.value.hint.startswith("'objective.class_weights' is a setting of: classifier;")


def test_values_from_python_are_taken_as_they_are(tmp_path: Path) -> None:
    text = tmp_path / "toy.txt"
    text.write_text(TOY_TEXT)
    settings: dict[str, Any] = {
        "tokenizer": {"file": None, "kind": "char"},
        "model": {"head": {"kind": "adaptive", "cutoffs": (5, 9)}},
        "model.hidden_size": 24,
    }
    config = resolve("lm", [str(text)], settings=settings).config
    assert config.tokenizer.file is None
    assert config.model.head.cutoffs == (5, 9)
    assert config.model.hidden_size == 24


def test_dotted_and_nested_names_mix() -> None:
    assert nested({"a.b": 1, "a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert list(flat({"a": {"c": {"d": [2]}, "b": 1}, "e": None}).items()) == [
        ("a.c.d", [2]),
        ("a.b", 1),
        ("e", None),
    ]
    assert merge({"a": {"b": 1}}, nested({"a.c": 2})) == {"a": {"b": 1, "c": 2}}
