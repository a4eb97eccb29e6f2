"""The texts of the tour are what its pages say of them."""

from __future__ import annotations

from pathlib import Path

import PIL.Image

from elman.lab.exercises import texts


def test_one_prefix_is_kept_for_the_test() -> None:
    assert not any(line.startswith(texts.UNSEEN) for line in texts.school())
    assert sum(line.startswith(texts.UNSEEN) for line in texts.school_test()) == 4
    assert set(texts.school()) < set(texts.school_test())
    assert texts.school_test(seed=2) != texts.school_test(seed=3)


def test_files(tmp_path: Path) -> None:
    texts.write_texts(tmp_path)
    first, second = (tmp_path / "tickets.txt").read_text().splitlines()
    assert first.split()[-1] == second.split()[-1] == "tickets"
    assert first.split()[6] == "tickets,"
    assert second.split()[6] == "photos,"
    for row in (tmp_path / "pictures.tsv").read_text().splitlines()[1:]:
        name, sentence = row.split("\t")
        with PIL.Image.open(tmp_path / "pictures_images" / name) as picture:
            colour, place = name.removesuffix(".png").split("-")
            column = {"left": 4, "middle": 12, "right": 20}[place]
            assert picture.convert("RGB").getpixel((column, 8)) == texts.COLOURS[colour]
            assert picture.convert("RGB").getpixel(((column + 12) % 24, 8)) == (255, 255, 255)
        assert sentence == f"a {colour} bar on the {place}"
    pairs = zip(
        (tmp_path / "reverse.src").read_text().splitlines(),
        (tmp_path / "reverse.tgt").read_text().splitlines(),
        strict=True,
    )
    assert all(source.split() == target.split()[::-1] for source, target in pairs)


def test_labels_are_balanced_and_fresh() -> None:
    some = texts.messages(100, seed=1)
    assert sum(label == "spam" for label, _ in some) == 50
    assert some == texts.messages(100, seed=1)
    assert some != texts.messages(100, seed=2)
