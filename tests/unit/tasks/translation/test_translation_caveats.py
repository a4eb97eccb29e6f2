"""What a run of a translator says of its pairs before it learns from them."""

from __future__ import annotations

from pathlib import Path

from elman.recipes.resolve import resolve
from elman.tasks.translation.task import set_up

LINES = [f"the line called {number}" for number in range(200)]
NEW = [f"another line called {number}" for number in range(40)]


def files(folder: Path, name: str, lines: list[str]) -> tuple[str, str]:
    source, target = folder / f"{name}.en", folder / f"{name}.de"
    source.write_text("".join(f"{line}\n" for line in lines))
    target.write_text("".join(f"{line[::-1]}\n" for line in lines))
    return str(source), str(target)


def caveats(folder: Path, *, valid: tuple[str, str], test: tuple[str, str]) -> list[str]:
    train = files(folder, "train", LINES)
    config = resolve("translator", train, valid=valid, test=test, device="cpu").config
    return set_up(config, folder / "run", False).caveats


def test_usual_data_has_none(tmp_path: Path) -> None:
    new = files(tmp_path, "new", NEW)
    assert caveats(tmp_path, valid=new, test=new) == []


def test_files_in_the_other_order(tmp_path: Path) -> None:
    new = files(tmp_path, "new", NEW)
    assert caveats(tmp_path, valid=new[::-1], test=new) == [
        "the validation files new.de new.en seem to be target and source"
    ]


def test_sources_that_are_also_learnt_from(tmp_path: Path) -> None:
    new = files(tmp_path, "new", NEW)
    part = files(tmp_path, "part", LINES[:10] + NEW)
    assert caveats(tmp_path, valid=new, test=part) == [
        "10 of 50 test sources are also among those to learn from"
    ]
