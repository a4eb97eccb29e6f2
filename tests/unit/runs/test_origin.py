"""A run folder from elsewhere may not name private files for `--resume` to read or write."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elman.base.cache import cache_folder
from elman.base.config import from_dict
from elman.base.errors import UsageError
from elman.runs import origin
from elman.runs.origin import check_origin, signature
from elman.runs.run_folder import CONFIG_FILE, write_config
from elman.tasks import task_named
from elman.tasks.opening import read_config

Make = Callable[..., Any]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Call it to become another user, with another key. The working directory is tmp_path/work."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def become(name: str = "other") -> None:
        monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / name))
        origin._key.cache_clear()

    become("me")
    yield become
    monkeypatch.undo()
    origin._key.cache_clear()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "private.txt"
    path.write_text("my diary\n")
    return path


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a run folder whose configuration names these files."""

    def make(*train: object, task: str = "lm", signed: bool = True, **parts: Any) -> Any:
        settings = {"task": task, "data": {"train": list(map(str, train))}, **parts}
        config = from_dict(task_named(task).config_class, settings)
        (tmp_path / "run").mkdir(exist_ok=True)
        write_config(tmp_path / "run", config, signature(config) if signed else None)
        return config

    return make


def test_own_runs_are_resumed_wherever_they_are(
    tmp_path: Path, make: Make, private: Path, elsewhere: Callable[..., None]
) -> None:
    config = make(private)
    check_origin(tmp_path / "run", config)
    (tmp_path / "run").rename(tmp_path / "moved")
    check_origin(tmp_path / "moved", config)
    assert read_config(tmp_path / "moved") == config  # the signature is no setting
    key = cache_folder() / origin.KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    elsewhere("other")
    with pytest.raises(UsageError, match=r"data\.train names .*private\.txt"):
        check_origin(tmp_path / "moved", config)
    elsewhere("me")
    check_origin(tmp_path / "moved", config)


@pytest.mark.parametrize("what", ["unsigned", "changed", "no text"])
def test_a_signature_cannot_be_left_out_or_reused(
    tmp_path: Path, make: Make, private: Path, elsewhere: Callable[..., None], what: str
) -> None:
    (tmp_path / "own.txt").write_text("text\n")
    make(tmp_path / "own.txt")
    signed = json.loads((tmp_path / "run" / CONFIG_FILE).read_text())["origin"]
    config = make(private, signed=False)
    path = tmp_path / "run" / CONFIG_FILE
    settings = json.loads(path.read_text())
    if what != "unsigned":
        settings["origin"] = signed if what == "changed" else [signed]
    path.write_text(json.dumps({k: v for k, v in settings.items() if k != "check"}))
    said = "no signature .*earlier version" if what == "unsigned" else "not started here"
    with pytest.raises(UsageError, match=said) as caught:
        check_origin(tmp_path / "run", config)
    assert str(private) in caught.value.message
    assert "--trust-data" in caught.value.hint


def test_what_a_foreign_run_may_read(
    tmp_path: Path, make: Make, private: Path, elsewhere: Callable[..., None]
) -> None:
    """Built-in corpora, files below the working directory and in the run folder, named files."""
    Path("data").mkdir()
    for path in (Path("mine.txt"), Path("data/a.txt"), tmp_path / "run" / "theirs.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("text\n")
    names = ("python-docs", "mine.txt", "data", "data/*.txt", tmp_path / "run" / "theirs.txt")
    check_origin(tmp_path / "run", make(*names, signed=False))
    config = make(private, "mine.txt", signed=False)
    check_origin(tmp_path / "run", config, [str(private)])


def link(private: Path) -> str:
    Path("link.txt").symlink_to(private)
    return "link.txt"


def folder_with_a_link(private: Path) -> str:
    Path("folder").mkdir()
    Path("folder/innocent.txt").write_text("text\n")
    Path("folder/link.txt").symlink_to(private)
    return "folder"


def linked_folder(private: Path) -> str:
    Path("folder").symlink_to(private.parent)
    return "folder/private.txt"


def hidden(private: Path) -> str:
    Path(".ssh").mkdir()
    Path(".ssh/key").write_text("secret\n")
    return ".ssh/key"


def home(private: Path) -> str:
    return "~/private.txt"


def above(private: Path) -> str:
    return "../private.txt"


def pattern(private: Path) -> str:
    return str(private.parent / "priv*")


@pytest.mark.parametrize(
    "way", [link, folder_with_a_link, linked_folder, hidden, home, above, pattern]
)
def test_ways_around(
    tmp_path: Path,
    make: Make,
    private: Path,
    elsewhere: Callable[..., None],
    way: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = make(way(private), signed=False)
    with pytest.raises(UsageError, match="outside of the working directory"):
        check_origin(tmp_path / "run", config)


def test_the_root_as_working_directory_allows_nothing(
    tmp_path: Path,
    make: Make,
    private: Path,
    elsewhere: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make(private, signed=False)
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match=r"names .*private"):
        check_origin(tmp_path / "run", config)


def test_tokenizers_and_embeddings_count_if_the_run_starts_again(
    tmp_path: Path, make: Make, private: Path, elsewhere: Callable[..., None]
) -> None:
    for task, parts in (
        ("lm", {"tokenizer": {"kind": "char", "file": str(private)}}),
        ("lm", {"model": {"vectors": str(private)}}),
        ("tagger", {"model": {"embeddings": {"path": str(private)}}}),
    ):
        config = make("python-docs", task=task, signed=False, **parts)
        check_origin(tmp_path / "run", config)  # the folder has its own copies
        with pytest.raises(UsageError, match=r"tokenizer\.file|model\.(vectors|embeddings\.path)"):
            check_origin(tmp_path / "run", config, begun=False)


@pytest.mark.parametrize("name", ["metrics.jsonl", "train"])
def test_a_foreign_run_may_not_write_through_links(
    tmp_path: Path, make: Make, private: Path, elsewhere: Callable[..., None], name: str
) -> None:
    config = make("python-docs", signed=False)
    (tmp_path / "run" / name).symlink_to(private)
    with pytest.raises(UsageError, match="is a symbolic link") as caught:
        check_origin(tmp_path / "run", config, ["python-docs"])
    assert "--trust-data" in caught.value.hint
    check_origin(tmp_path / "run", config, None)


def test_the_first_key_is_kept_when_two_are_made_at_once(
    elsewhere: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes its key after this one found none, and before this one writes."""
    theirs, link = bytes(range(origin.KEY_BYTES)), os.link

    def link_after_another(source: Path, target: Path) -> None:
        target.write_bytes(theirs)
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_another)
    assert origin._key() == theirs == (cache_folder() / origin.KEY_FILE).read_bytes()


def test_a_damaged_key_is_made_again(elsewhere: Callable[..., None]) -> None:
    (cache_folder() / origin.KEY_FILE).write_bytes(b"short")
    assert origin._key() == (cache_folder() / origin.KEY_FILE).read_bytes()


def test_without_a_key_that_is_kept_runs_are_not_signed(
    tmp_path: Path, make: Make, private: Path, elsewhere: Callable[..., None]
) -> None:
    (tmp_path / "file").write_text("no folder")
    elsewhere("file/cache")
    config = make(private)
    assert "origin" not in json.loads((tmp_path / "run" / CONFIG_FILE).read_text())
    with pytest.raises(UsageError, match="has no signature"):
        check_origin(tmp_path / "run", config)


def test_a_foreign_run_may_not_fetch_from_an_address(
    make: Make, elsewhere: Callable[..., None], tmp_path: Path
) -> None:
    address = "http://127.0.0.1:9/inside.txt"
    config = make(address)
    check_origin(tmp_path / "run", config)
    elsewhere()
    with pytest.raises(UsageError, match=r"names http://127\.0\.0\.1:9/inside\.txt"):
        check_origin(tmp_path / "run", config)
    check_origin(tmp_path / "run", config, [address])
