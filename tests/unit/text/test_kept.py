"""Copies in the cache folder are shown under the name of what they were made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import elman
from elman.base.cache import cache_folder
from elman.base.errors import ElmanError, UsageError
from elman.base.origins import origin, with_origins
from elman.text.converting import named_texts, utf8_files

TEXT = "Crème brûlée\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache folder"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def latin(name: str, text: str = TEXT) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="latin-1")
    return name


def test_a_converted_file_is_shown_as_given() -> None:
    (copy,) = utf8_files([latin("my menu.txt")], "latin-1")
    assert origin(copy) == "my menu.txt"
    assert (
        with_origins(f"{copy}, line 3: no; see {copy}")
        == "my menu.txt, line 3: no; see my menu.txt"
    )


def test_two_files_of_the_same_content_have_their_own_names() -> None:
    names = [latin("a.txt"), latin("a.txt.old"), latin("sub/a.txt.old")]
    a, old, last = utf8_files(names, "latin-1")
    assert [origin(a), with_origins(f"{old}!")] == ["a.txt", "sub/a.txt.old!"]
    assert old == last  # one copy: the last given name is shown


def test_a_table_in_another_encoding_is_shown_as_given() -> None:
    table = latin("menu.csv", "nr;dish\n1;crème\n2;brûlée\n")
    (copy,) = utf8_files([table], "latin-1", column="dish")
    assert Path(copy).name == "menu.txt"
    assert origin(copy) == "menu.csv"
    moved = f"../{Path().resolve().name}/menu.csv"
    assert utf8_files([moved], "latin-1", column="dish") == [copy]
    assert origin(copy) == moved


def test_files_of_a_folder_are_shown_in_it() -> None:
    latin("menus/french.txt")
    (copy,) = utf8_files(["menus"], "latin-1")
    assert origin(copy) == "menus"
    assert origin(Path(copy) / "french.txt") == "menus/french.txt"
    assert with_origins(f"error: {copy}/french.txt is bad") == "error: menus/french.txt is bad"


def test_texts_from_python_have_a_name() -> None:
    (copy,) = named_texts(iter(["some text", "and more"]))
    assert origin(copy) == "data from Python"


def test_what_is_no_copy_stays() -> None:
    for path in ("a.txt", "texts/a.txt", "/x/texts/index/0123456789abcdef"):
        assert origin(path) == path
        assert with_origins(path) == path
    assert not Path("../cache folder").exists()


def test_a_long_message_is_searched_once() -> None:
    """It may quote what a client of the server sent; a search from each character would not end."""
    message = "x" * 1_000_000
    assert ElmanError(message).message == message


def test_a_lost_copy_is_named_in_errors() -> None:
    """A run cannot be resumed without it, although its source may be there."""
    (copy,) = utf8_files([latin("menu.txt")], "latin-1")
    shutil.rmtree(cache_folder() / "texts")
    assert with_origins(f"{copy} does not exist") == f"{copy} does not exist"
    assert origin(copy) == "menu.txt"


def test_errors_name_what_was_given() -> None:
    (copy,) = utf8_files([latin("menu.txt")], "latin-1")
    error = ElmanError(f"{copy}, line 1: no dish", f"look into {copy}")
    assert str(error) == "menu.txt, line 1: no dish\nhint: look into menu.txt"
    assert error.args == ("menu.txt, line 1: no dish",)
    with pytest.raises(UsageError, match=r"^menu\.txt has no column of labels"):
        elman.train_classifier("menu.txt", encoding="latin-1")
