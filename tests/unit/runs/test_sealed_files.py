"""Every changed bit in the small files of a run folder is refused, or changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.config import to_dict
from elman.base.documents import check_page, sealed_page
from elman.base.errors import ElmanError
from elman.runs.run_folder import CONFIG_FILE, about, check_vocabulary, write_config
from elman.tasks import all_tasks
from elman.tasks.classification.vocabulary import LABELS_FILE, LabelVocabulary
from elman.tasks.opening import read_config
from elman.tasks.tagging.vocabulary import TagVocabulary
from elman.tokens import characters
from elman.tokens.tokenizer import Tokenizer

NUM_FLIPS = 60
TASKS = [task.name for task in all_tasks()]


def flip(path: Path, read: Callable[[], Any]) -> int:
    """Flip bits of a file, one at a time; return how many flips were refused."""
    whole, expected, draw, refused = path.read_bytes(), read(), random.Random(3), 0
    for _ in range(NUM_FLIPS):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            assert read() == expected, data
        except ElmanError:
            refused += 1
    path.write_bytes(whole)
    return refused


@pytest.mark.parametrize("name", TASKS)
def test_a_flip_in_the_configuration(tmp_path: Path, name: str) -> None:
    task = next(task for task in all_tasks() if task.name == name)
    write_config(tmp_path, task.config_class(task=name))
    assert flip(tmp_path / CONFIG_FILE, lambda: to_dict(read_config(tmp_path))) == NUM_FLIPS


@pytest.mark.parametrize(
    "change",
    [
        {"model": []},
        {"model": {"kind": ["x"]}},
        {"data": 5},
        {"format": [2]},
        {"format": 10**4000},
        {"task": {"a": 1}},
        {"recipe": 7},
    ],
)
def test_other_types_in_the_configuration_are_one_sentence(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    import json

    task = next(task for task in all_tasks() if task.name == TASKS[0])
    values = to_dict(task.config_class(task=task.name)) | change
    (tmp_path / CONFIG_FILE).write_text(json.dumps(values))
    with pytest.raises(ElmanError) as caught:
        read_config(tmp_path)
    assert "\n" not in caught.value.message


def test_a_flip_in_the_vocabulary_of_a_tagger(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    vocabulary = TagVocabulary("bio", True, ("B-X", "O"), ("the", "check", "ä"))
    vocabulary.save(path)
    header = about(vocabulary)

    def read() -> TagVocabulary:
        found = TagVocabulary.load(path)
        check_vocabulary(tmp_path, found, header, path.name)
        return found

    assert flip(path, read) == NUM_FLIPS


@pytest.mark.parametrize("file", [LABELS_FILE, "tokenizer.json"])
def test_a_flip_in_the_files_of_a_classifier(tmp_path: Path, file: str) -> None:
    tokenizer = Tokenizer(characters.build("abc "))
    vocabulary = LabelVocabulary(tokenizer, ("no", "yes"))
    vocabulary.save(tmp_path)
    header = about(vocabulary)

    def read() -> Any:
        found = LabelVocabulary.load(tmp_path)
        check_vocabulary(tmp_path, found, header)
        return found.labels, found.encode("abd ca"), found.tokenizer.spellings()

    assert flip(tmp_path / file, read) > NUM_FLIPS // 4


def test_models_of_earlier_versions_still_open(tmp_path: Path) -> None:
    vocabulary = LabelVocabulary(Tokenizer(characters.build("abc ")), ("no", "yes"))
    assert vocabulary.hash != vocabulary.old_hash
    for found in (vocabulary, vocabulary.tokenizer):
        check_vocabulary(tmp_path, found, {"tokenizer": found.old_hash})
        with pytest.raises(ElmanError, match="is not the tokenizer"):
            check_vocabulary(tmp_path, found, {"tokenizer": "another"})


@pytest.mark.parametrize(
    "content", ['["a", "a"]', '["a", 1]', '{"a": 1}', '[["a"]]', "[" * 100_000, "null"]
)
def test_labels_that_are_no_different_names_are_one_sentence(tmp_path: Path, content: str) -> None:
    LabelVocabulary(Tokenizer(characters.build("abc ")), ("no", "yes")).save(tmp_path)
    (tmp_path / LABELS_FILE).write_text(content)
    with pytest.raises(ElmanError, match=LABELS_FILE):
        LabelVocabulary.load(tmp_path)


def test_a_flip_in_the_card(tmp_path: Path) -> None:
    path = tmp_path / "card.md"
    path.write_text(sealed_page("# A model\n\n<!-- a comment -->\n"))
    assert flip(path, lambda: check_page(path)) == NUM_FLIPS
    path.write_text("# An older card\n\n<!-- a comment -->\n")
    check_page(path)
