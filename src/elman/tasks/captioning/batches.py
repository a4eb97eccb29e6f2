"""Pictures and sentences about them: a TSV that names both, and the pictures near it.

The table has the columns `image` (a file name) and `sentence`, as its header says or, without one,
in this order. Sentences whose column `label` says false are left out. Pictures lie beside the
table, in a folder `images` or `<table>_images` there, or in a zip archive of either name, or in a
folder that the user named. A table from elsewhere cannot make any other file be read. Pictures are
read when a batch needs them, and cached.

C colours, H rows, W columns of pixels.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.counting import counted
from elman.base.documents import intact
from elman.base.errors import ElmanError, UsageError
from elman.text.pairs import lines_of

Pixels = NDArray[np.uint8]
MOST_KEPT = 256 << 20
"""Size of the cache of decoded pictures in bytes."""
MOST_PIXELS = 40_000_000
"""Limit on the size of a picture: decoding takes about 20 bytes for each pixel."""
MOST_BYTES = 256 << 20
"""Limit on the size of a picture's file."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""Formats that are read. Pillow has more, and starts another program for one of them."""
HINT = "restore the file, or leave its row out of the table"
COLUMNS = ("image", "sentence", "label")
FALSE = {"false", "0", "no"}
"""Labels of sentences that are not true of their picture."""


@dataclass(frozen=True)
class Captions:
    """Sentences about pictures."""

    table: Path
    rows: tuple[tuple[str, str], ...]
    """The name of a picture and a sentence about it."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sentences(self) -> list[str]:
        return [sentence for _, sentence in self.rows]

    def split(self, fraction: float) -> tuple[Captions, Captions]:
        """Split off the first `fraction` of the distinct sentences; the parts share no sentence.

        One sentence often describes several pictures. In both parts, it could be memorised.
        """
        different = list(dict.fromkeys(self.sentences))
        cut = min(len(different) - 1, max(1, round(len(different) * fraction)))
        first = set(different[:cut])
        return (
            Captions(self.table, tuple(row for row in self.rows if row[1] in first)),
            Captions(self.table, tuple(row for row in self.rows if row[1] not in first)),
        )


def read_captions(table: Path) -> Captions:
    """Read a table; raise an error that names the line number of a malformed row."""
    lines = list(lines_of(table)) or [""]
    columns = {"image": 0, "sentence": 1}
    header = [name.strip().lower() for name in lines[0].split("\t")]
    has_header = set(COLUMNS[:2]) <= set(header)
    if has_header:
        columns = {name: header.index(name) for name in COLUMNS if name in header}
    rows = []
    for number, line in enumerate(lines[has_header:], start=1 + has_header):
        fields = line.split("\t")
        if not line.strip():
            continue
        if len(fields) <= max(columns.values()):
            raise ElmanError(
                f"{table}, line {number}: {counted(len(fields), 'column')} instead of "
                f"{max(columns.values()) + 1}",
                "a row is an image, a tab and a sentence, unless a header names the columns",
            )
        if "label" in columns and fields[columns["label"]].strip().lower() in FALSE:
            continue
        rows.append((fields[columns["image"]].strip(), fields[columns["sentence"]].strip()))
    if not rows:
        raise ElmanError(f"{table} has no sentences", "check the file")
    return Captions(table, tuple(rows))


class Pictures:
    """The pictures of a table, resized to one size; `folder` may have more of them."""

    def __init__(self, table: Path, height: int, width: int, folder: str = "") -> None:
        self.table = table
        self.folders = [table.parent, *([Path(folder).expanduser()] if folder else [])]
        self.height, self.width = height, width
        self._kept: dict[str, Pixels] = {}

    def pixels(self, name: str) -> Pixels:
        """The colours (C, H, W) of a picture, 0 to 255."""
        if name not in self._kept:
            if (len(self._kept) + 1) * 3 * self.height * self.width > MOST_KEPT:
                self._kept.clear()
            data, where = self._read(name)
            try:
                self._kept[name] = decode_picture(data, where, self.height, self.width)
            except ElmanError as error:
                raise ElmanError(f"{self._line(name)}: {error.message}", error.hint) from error
        return self._kept[name]

    def _line(self, name: str) -> str:
        """The first line of the table that names the picture, for messages."""
        for number, line in enumerate(lines_of(self.table), start=1):
            if name in (field.strip() for field in line.split("\t")):
                return f"{self.table}, line {number}"
        return str(self.table)

    def _read(self, name: str) -> tuple[bytes, str]:
        beside, *others = self.folders
        for place in (beside, *(beside / each for each in self._places), *others):
            if (path := place / name).is_file():
                self._check_inside(path, name)
                with intact(path):
                    _check_bytes(path.stat().st_size, str(path))
                    return path.read_bytes(), str(path)
        for archive, files in self._archives.items():
            if name in files:
                where = f"{archive}, {name}"
                with intact(where), zipfile.ZipFile(archive) as opened:
                    _check_bytes(opened.getinfo(files[name]).file_size, where)
                    return opened.read(files[name]), where
        looked = ", ".join(f"{place}/ or {place}.zip" for place in self._places)
        raise ElmanError(
            f"{self._line(name)}: the picture {name} is missing",
            f"put it beside the table, into {looked}",
        )

    def _check_inside(self, path: Path, name: str) -> None:
        """Refuse a file outside of the folders, also one that a link leads to."""
        if not any(path.resolve().is_relative_to(folder.resolve()) for folder in self.folders):
            folder = path.resolve().parent
            raise ElmanError(
                f"{self._line(name)}: the picture {name} is outside of the table's folder",
                f"if you know the table, add --set data.pictures={folder} (elman evaluate: "
                f"--pictures {folder})",
            )

    @property
    def _places(self) -> tuple[str, str]:
        return f"{self.table.name.split('.')[0]}_images", "images"

    @cached_property
    def _archives(self) -> dict[Path, dict[str, str]]:
        """The files of each zip archive, by name with and without folders."""
        found = {}
        for place in self._places:
            archive = self.table.parent / f"{place}.zip"
            if archive.is_file():
                with intact(archive, "is not a zip archive"), zipfile.ZipFile(archive) as opened:
                    inside = opened.namelist()
                found[archive] = {path.rpartition("/")[2]: path for path in inside}
                found[archive].update({path: path for path in inside})
        return found


def decode_picture(data: bytes, where: str, height: int, width: int) -> Pixels:
    """Decode and resize a picture of any common format to RGB (C, H, W), on a white background."""
    with _opened(data, where) as picture:
        image = _pillow()
        ground = image.new("RGBA", picture.size, "white")
        flat = image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")
        resized = flat.resize((width, height), image.Resampling.BILINEAR)
    return np.asarray(resized, np.uint8).transpose(2, 0, 1)


def picture_shape(path: Path, folder: str = "") -> tuple[int, int]:
    """Height and width of the first picture of a table."""
    name, _ = read_captions(path).rows[0]
    with _opened(*Pictures(path, 1, 1, folder)._read(name)) as picture:
        width, height = picture.size
    return height, width


@contextmanager
def _opened(data: bytes, where: str) -> Iterator[Any]:
    """Open a picture with Pillow; raise an error that names the place of an unreadable one."""
    image = _pillow()
    with intact(where, "is not a readable picture", HINT):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", image.DecompressionBombWarning)
                opened = image.open(io.BytesIO(data), formats=FORMATS)
        except image.UnidentifiedImageError as error:  # its message has the address of an object
            raise ValueError("its format is unknown, or its beginning is damaged") from error
        except image.DecompressionBombError as error:
            raise ValueError(f"it has too many pixels (limit {MOST_PIXELS:,})") from error
        with opened as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                raise ElmanError(
                    f"{where} has {width:,} x {height:,} pixels (limit {MOST_PIXELS:,})",
                    "make it smaller, or leave its row out of the table",
                )
            yield picture


def _check_bytes(num_bytes: int, where: str) -> None:
    if num_bytes > MOST_BYTES:
        raise ElmanError(f"{where} has {num_bytes:,} bytes (limit {MOST_BYTES:,})", HINT)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "pictures need the package Pillow, which is not installed",
            "pip install 'elman[images]'",
        ) from error
    return Image
