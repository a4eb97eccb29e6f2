"""Texts that are given twice, or both for training and for measuring."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.text.repeated import HEAD, learnt_texts, repeated_texts


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"the text called {name}\n" * HEAD)
    (tmp_path / "copy.txt").write_bytes((tmp_path / "a.txt").read_bytes())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.txt").write_bytes((tmp_path / "b.txt").read_bytes())
    (tmp_path / "link.txt").symlink_to("a.txt")
    return tmp_path


@pytest.mark.parametrize(
    ("train", "valid", "test", "notes"),
    [
        (["a.txt"], ["b.txt"], ["c.txt"], []),
        (["a.txt"], [], [], []),
        (["a.txt", "./a.txt"], [], [], ["named more than once, and read once: a.txt"]),
        (["a.txt", "link.txt", "a.txt"], [], [], ["named more than once, and read once: a.txt"]),
        (["a.txt", "b.txt", "copy.txt"], [], [], ["a.txt and copy.txt have the same content"]),
        (
            ["a.txt"],
            ["a.txt"],
            [],
            ["the validation text a.txt is also a training text: its figures are too good"],
        ),
        (
            ["a.txt"],
            ["copy.txt"],
            [],
            ["the validation text copy.txt is also a training text: its figures are too good"],
        ),
        (
            ["a.txt", "folder"],
            [],
            ["b.txt"],
            ["the test text b.txt is also a training text: its figures are too good"],
        ),
        (
            ["*.txt", "folder"],
            ["c.txt"],
            [],
            [
                "2 of 5 training texts have the content of another one: copy.txt, folder/b.txt",
                "the validation text c.txt is also a training text: its figures are too good",
            ],
        ),
        (["a.txt"], ["b.txt"], ["b.txt"], ["the test text b.txt is also the validation text"]),
        (
            ["a.txt", "b.txt", "c.txt"],
            ["a.txt", "b.txt"],
            [],
            [
                "2 of 2 validation texts are also training texts, so the figures are too good: "
                "a.txt, b.txt"
            ],
        ),
    ],
)
def test_what_is_said(
    files: Path, train: list[str], valid: list[str], test: list[str], notes: list[str]
) -> None:
    assert repeated_texts(train, valid, test) == notes


def test_files_of_one_size_and_one_beginning_are_not_the_same(tmp_path: Path) -> None:
    beginning = "x" * HEAD
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{beginning}{name}\n")
    assert repeated_texts([str(tmp_path / "one"), str(tmp_path / "two")], [], []) == []


def test_the_middle_of_long_files_is_not_read_if_their_beginnings_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import elman.text.repeated as repeated

    for name in ("one", "two"):
        (tmp_path / name).write_text(name + "x" * HEAD)
    monkeypatch.setattr(repeated, "_hash_of", lambda path: pytest.fail("read whole"))
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert repeated_texts([one, two], [], []) == []
    (note,) = repeated_texts([one], [one], [two])
    assert note == f"the validation text {one} is also a training text: its figures are too good"


def test_many_files_are_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"{i}.txt" for i in range(6)]
    for i, name in enumerate(names):
        Path(name).write_text(f"text number {i}\n")
    (note,) = repeated_texts(names, names[:5], [])
    assert note == (
        "5 of 5 validation texts are also training texts, so the figures are too good: "
        "0.txt, 1.txt, 2.txt and 2 more"
    )


def test_texts_of_a_run_that_are_measured(tmp_path: Path) -> None:
    one, other = (tmp_path / name for name in ("one.txt", "other.txt"))
    for file in (one, other):
        file.write_text("a text")
    (note,) = learnt_texts([[str(one)], []], [str(one), str(other)])
    assert note == f"{one} is training text of the model: the figures are too good"
    assert learnt_texts([[str(one)]], [str(other)]) == []
