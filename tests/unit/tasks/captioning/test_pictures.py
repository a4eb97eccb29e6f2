from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from elman.base.errors import ElmanError
from elman.tasks.captioning.batches import Pictures, decode_picture, picture_shape, read_captions

image = pytest.importorskip("PIL.Image")


def png(colour: str, size: tuple[int, int] = (8, 4), mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    image.new(mode, size, colour).save(stream, "PNG")
    return stream.getvalue()


def test_columns_by_header_or_in_order(tmp_path: Path) -> None:
    table = tmp_path / "a.tsv"
    table.write_text("image\tlabel\tsentence\na.png\ttrue\tA cat.\nb.png\tFalse\tA dog.\n\n")
    assert read_captions(table).rows == (("a.png", "A cat."),)
    table.write_text("a.png\tA cat.\nb.png\tA dog.\n")
    assert read_captions(table).rows == (("a.png", "A cat."), ("b.png", "A dog."))


def test_no_sentence_is_on_both_sides_of_a_split(tmp_path: Path) -> None:
    rows = [f"{number}.png\tsentence {number % 4}\n" for number in range(20)]
    (tmp_path / "a.tsv").write_text("".join(rows))
    first, rest = read_captions(tmp_path / "a.tsv").split(0.75)
    assert set(first.sentences) == {"sentence 0", "sentence 1", "sentence 2"}
    assert set(rest.sentences) == {"sentence 3"}
    assert [name for name, _ in rest.rows] == ["3.png", "7.png", "11.png", "15.png", "19.png"]
    assert len(first) + len(rest) == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image\tsentence\na.png\n", "line 2: 1 column instead of 2"),
        ("a.png A cat.\n", "line 1: 1 column instead of 2"),
        ("image\tlabel\tsentence\na.png\tfalse\tx\n", "has no sentences"),
    ],
)
def test_what_is_no_table_of_captions_is_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(ElmanError, match=said):
        read_captions(tmp_path / "a.tsv")


def test_pictures_are_found_beside_in_folders_and_in_archives(tmp_path: Path) -> None:
    table = tmp_path / "dev.tsv"
    table.write_text("1.png\ta\n2.png\tb\n3.png\tc\n4.png\td\n")
    (tmp_path / "1.png").write_bytes(png("red"))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "2.png").write_bytes(png("lime"))
    with zipfile.ZipFile(tmp_path / "dev_images.zip", "w") as archive:
        archive.writestr("inside/3.png", png("blue"))
    pictures = Pictures(table, 3, 5)
    for name, colour in (("1.png", [255, 0, 0]), ("2.png", [0, 255, 0]), ("3.png", [0, 0, 255])):
        pixels = pictures.pixels(name)
        assert pixels.shape == (3, 3, 5)
        assert pixels[:, 1, 2].tolist() == colour
    with pytest.raises(ElmanError, match=r"dev\.tsv, line 4: the picture 4\.png is missing"):
        pictures.pixels("4.png")
    (tmp_path / "4.png").write_bytes(png("red")[:40])
    with pytest.raises(ElmanError, match=r"dev\.tsv, line 4: .*4\.png is not a readable") as caught:
        pictures.pixels("4.png")
    assert "BytesIO" not in str(caught.value)
    assert picture_shape(table) == (4, 8)


def test_transparent_points_are_white() -> None:
    data = png((0, 0, 0, 0), mode="RGBA")  # type: ignore[arg-type]
    assert np.all(decode_picture(data, "a.png", 2, 2) == 255)


@pytest.mark.parametrize("data", [b"", b"no picture", png("red")[:40]])
def test_a_corrupt_picture_is_named(data: bytes) -> None:
    with pytest.raises(ElmanError, match=r"^folder/a\.png is not a readable picture"):
        decode_picture(data, "folder/a.png", 2, 2)


@pytest.mark.parametrize(
    ("side", "words"), [(10_000, "has 10,000 x 10,000 pixels"), (30_000, "it has too many pixels")]
)
def test_the_size_of_a_picture_is_checked_before_it_is_decoded(side: int, words: str) -> None:
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk
    data += struct.pack(">I", zlib.crc32(chunk))
    data += struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    with pytest.raises(ElmanError, match=rf"bomb\.png .*{words}"):
        decode_picture(data, "bomb.png", 2, 2)


def test_a_format_that_needs_another_program_is_not_read() -> None:
    data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
    with pytest.raises(ElmanError, match="its format is unknown"):
        decode_picture(data, "a.png", 2, 2)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_archive_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    table = tmp_path / "dev.tsv"
    table.write_text("1.png\ta cat\n")
    (tmp_path / "images.zip").write_bytes(content)
    with pytest.raises(ElmanError, match=r"is not a zip archive|is missing"):
        Pictures(table, 3, 5).pixels("1.png")


@pytest.mark.parametrize("way", ["above", "absolute", "link", "linked folder", "through images"])
def test_pictures_outside_of_the_tables_folder_are_refused(tmp_path: Path, way: str) -> None:
    private = tmp_path / "private" / "me.png"
    for folder in (private.parent, tmp_path / "table" / "images"):
        folder.mkdir(parents=True)
    private.write_bytes(png("red"))
    table = tmp_path / "table" / "a.tsv"
    (table.parent / "link.png").symlink_to(private)
    (table.parent / "a_images").symlink_to(private.parent)
    name = {
        "above": "../private/me.png",
        "absolute": str(private),
        "link": "link.png",
        "linked folder": "me.png",
        "through images": "images/../../private/me.png",
    }[way]
    table.write_text(f"{name}\ta picture\n")
    for read in (lambda: Pictures(table, 3, 5).pixels(name), lambda: picture_shape(table)):
        with pytest.raises(ElmanError, match=r"a\.tsv, line 1: .* outside of the table's") as found:
            read()
        assert f"data.pictures={private.parent}" in found.value.hint
    named = Pictures(table, 3, 5, str(private.parent))
    assert named.pixels(name)[:, 1, 2].tolist() == [255, 0, 0]
    assert picture_shape(table, str(private.parent)) == (4, 8)


def test_names_in_an_archive_lead_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("../x.png\ta\n")
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("../x.png", png("blue"))
    pixels = Pictures(tmp_path / "a.tsv", 3, 5).pixels("../x.png")
    assert pixels[:, 1, 2].tolist() == [0, 0, 255]
    assert [path.name for path in tmp_path.parent.glob("x.png")] == []
