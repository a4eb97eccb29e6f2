"""What a run of a tagger says of its sentences and tags before it learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from elman.base.errors import ElmanError, UsageError
from elman.recipes.resolve import resolve
from elman.tasks.tagging.task import set_up

Sentences = Sequence[Sequence[tuple[str, str]]]
SENTENCES = [[("the", "DET"), (f"noun{i}", "NOUN"), (".", "PUNCT")] for i in range(20)]
NEW = [[("a", "DET"), (f"noun{i}", "NOUN"), (".", "PUNCT")] for i in range(20)]


def columns(path: Path, sentences: Sentences) -> str:
    blocks = ("".join(f"{word}\t{tag}\n" for word, tag in words) for words in sentences)
    path.write_text("\n".join(blocks))
    return str(path)


def caveats(folder: Path, *parts: Sentences) -> list[str]:
    """Of a run on files for training, validation and test."""
    train, *held_out = (columns(folder / f"{i}.tsv", part) for i, part in enumerate(parts))
    given = dict(zip(("valid", "test"), ([name] for name in held_out), strict=False))
    config = resolve("tagger", [train], device="cpu", **given).config
    return set_up(config, folder / "run", False).caveats


def test_usual_data_has_none_and_its_tags_are_named(tmp_path: Path) -> None:
    assert caveats(tmp_path, SENTENCES, NEW, NEW) == []
    notes = resolve("tagger", [str(tmp_path / "0.tsv")], device="cpu").notes
    assert notes[0] == "3 tags: DET, NOUN, PUNCT"


def test_tags_that_training_lacks(tmp_path: Path) -> None:
    others = [[(word, "SYM" if tag == "PUNCT" else tag) for word, tag in words] for words in NEW]
    assert caveats(tmp_path, SENTENCES, NEW, others) == [
        "20 of 60 test words have tags that the training text lacks: SYM"
    ]
    small = [[(word, tag.lower()) for word, tag in words] for words in NEW]
    with pytest.raises(UsageError, match="no validation word has a tag of the training text") as e:
        caveats(tmp_path, SENTENCES, small)
    assert "theirs are DET, NOUN, PUNCT, those of the validation words det" in e.value.hint


def test_sentences_that_are_also_learnt_from(tmp_path: Path) -> None:
    assert caveats(tmp_path, SENTENCES, NEW, SENTENCES[:5] + NEW) == [
        "5 of 25 test sentences are also among those to learn from"
    ]


def test_one_tag_is_refused(tmp_path: Path) -> None:
    path = columns(tmp_path / "a.tsv", [[("a", "O"), ("b", "O")]] * 9)
    with pytest.raises(UsageError, match=r"all words of .*a\.tsv have the tag 'O'") as caught:
        resolve("tagger", [path], device="cpu")
    assert "--column" in caught.value.hint


def test_numbers_in_place_of_words_are_refused(tmp_path: Path) -> None:
    numbered = ("".join(f"{i}\t{w}\t{t}\n" for i, (w, t) in enumerate(s, 1)) for s in SENTENCES)
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(numbered))
    with pytest.raises(UsageError, match=r"the first column of .*a\.tsv counts the words") as e:
        resolve("tagger", [str(path)], device="cpu")
    assert "cut -f2-" in e.value.hint


@pytest.mark.parametrize("mark", ["/", "_"])
def test_words_and_tags_in_one_line(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(" ".join(map(mark.join, words)) + "\n" for words in SENTENCES))
    with pytest.raises(ElmanError, match=r"a\.txt, line 1: several words with tags") as caught:
        resolve("tagger", [str(path)], device="cpu")
    assert "one word per line" in caught.value.hint


def test_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["a", "b"], "tags": ["X", "Y"]}\n' * 20)
    with pytest.raises(UsageError, match=r"a tagger does not read \.jsonl"):
        resolve("tagger", [str(path)], device="cpu")
