"""Pictures and the sentences about them: a TSV that names both, and the pictures near it.

The table has a column `image` (a file name) and a column `sentence`, by its header or, without
one, in this order. A column `label` may say which sentences are true: those that it calls false are
left out. Pictures lie beside the table, in a folder `images` or `<table>_images` there, or in a zip
archive of either name; they are read when their batch comes, and kept while there is room.

C colours, H rows, W columns of pixels.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.text.pairs import lines_of

Pixels = NDArray[np.uint8]
MOST_KEPT = 256 << 20
"""Bytes of decoded pictures that stay in memory."""
FALSE = {"false", "0", "no"}
"""Labels of sentences that are not about their picture."""


@dataclass(frozen=True)
class Captions:
    """Sentences about pictures."""

    table: Path
    names: tuple[str, ...]
    """The picture of each sentence."""
    sentences: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def part(self, start: int, stop: int) -> Captions:
        """The captions from `start` to before `stop`."""
        return Captions(self.table, self.names[start:stop], self.sentences[start:stop])

    def split(self, fraction: float) -> tuple[Captions, Captions]:
        """Two parts that share no sentence: the first `fraction` of the different ones, the rest.

        One sentence is often written about several pictures; on both sides, it would be known by
        heart where it is to be judged.
        """
        different = list(dict.fromkeys(self.sentences))
        cut = min(len(different) - 1, max(1, round(len(different) * fraction)))
        first = set(different[:cut])
        rows = list(zip(self.names, self.sentences, strict=True))
        parts = ([r for r in rows if r[1] in first], [r for r in rows if r[1] not in first])
        return tuple(  # type: ignore[return-value]
            Captions(self.table, tuple(r[0] for r in part), tuple(r[1] for r in part))
            for part in parts
        )


def read_captions(table: Path) -> Captions:
    """The rows of a table that count; a row that is none is told with its number."""
    lines = list(lines_of(table))
    columns = {"image": 0, "sentence": 1}
    header = [name.strip().lower() for name in lines[0].split("\t")]
    has_header = {"image", "sentence"} <= set(header)
    if has_header:
        columns = {name: header.index(name) for name in ("image", "sentence", "label")
                   if name in header}  # fmt: skip
    names, sentences = [], []
    for number, line in enumerate(lines[has_header:], start=1 + has_header):
        fields = line.split("\t")
        if not line.strip():
            continue
        if len(fields) <= max(columns.values()):
            raise ElmanError(
                f"{table}, line {number}: {counted(len(fields), 'column')} where "
                f"{max(columns.values()) + 1} are needed",
                "a row is an image, a tab and a sentence; a header names other orders",
            )
        if "label" in columns and fields[columns["label"]].strip().lower() in FALSE:
            continue
        names.append(fields[columns["image"]].strip())
        sentences.append(fields[columns["sentence"]].strip())
    if not names:
        raise ElmanError(f"{table} has no sentences", "check the file")
    return Captions(table, tuple(names), tuple(sentences))


class Pictures:
    """The pictures of a table, brought to one size."""

    def __init__(self, table: Path, height: int, width: int) -> None:
        self.table = table
        self.height, self.width = height, width
        self._kept: dict[str, Pixels] = {}

    def pixels(self, name: str) -> Pixels:
        """(C, H, W) the colours of a picture, whole numbers from 0 to 255."""
        if name not in self._kept:
            if (len(self._kept) + 1) * 3 * self.height * self.width > MOST_KEPT:
                self._kept.clear()
            data, where = self._read(name)
            try:
                self._kept[name] = decode_picture(data, where, self.height, self.width)
            except ElmanError as error:
                raise ElmanError(f"{self._line(name)}: {error}", error.hint) from error
        return self._kept[name]

    def _line(self, name: str) -> str:
        """Where the table names the picture."""
        for number, line in enumerate(lines_of(self.table), start=1):
            if name in (field.strip() for field in line.split("\t")):
                return f"{self.table}, line {number}"
        return str(self.table)

    def _read(self, name: str) -> tuple[bytes, str]:
        folder = self.table.parent
        for place in (folder, *(folder / each for each in self._places)):
            if (place / name).is_file():
                return (place / name).read_bytes(), str(place / name)
        for archive, files in self._archives.items():
            if name in files:
                with zipfile.ZipFile(archive) as opened:
                    return opened.read(files[name]), f"{archive}, {name}"
        looked = ", ".join(f"{place}/ or {place}.zip" for place in self._places)
        raise ElmanError(
            f"{self._line(name)} names a picture {name} that is not there",
            f"put it beside the table, into {looked}",
        )

    @property
    def _places(self) -> tuple[str, str]:
        return f"{self.table.name.split('.')[0]}_images", "images"

    @cached_property
    def _archives(self) -> dict[Path, dict[str, str]]:
        """The zip archives there are: their files, by name and by name without folders."""
        found = {}
        for place in self._places:
            archive = self.table.parent / f"{place}.zip"
            if archive.is_file():
                try:
                    with zipfile.ZipFile(archive) as opened:
                        inside = opened.namelist()
                except zipfile.BadZipFile as error:
                    raise ElmanError(f"{archive} is not a zip archive: {error}") from error
                found[archive] = {path.rpartition("/")[2]: path for path in inside}
                found[archive].update({path: path for path in inside})
        return found


def decode_picture(data: bytes, where: str, height: int, width: int) -> Pixels:
    """(C, H, W) a picture of any common format in three colours, on white where transparent."""
    image = _pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            picture = opened.convert("RGBA")
        ground = image.new("RGBA", picture.size, "white")
        flat = image.alpha_composite(ground, picture).convert("RGB")
        resized = flat.resize((width, height), image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise _unreadable(where, error) from error
    return np.asarray(resized, np.uint8).transpose(2, 0, 1)


def picture_shape(path: Path) -> tuple[int, int]:
    """Rows and columns of a picture."""
    pictures = Pictures(path, 1, 1)
    data, where = pictures._read(read_captions(path).names[0])
    image = _pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            width, height = opened.size
            return height, width
    except (OSError, ValueError, SyntaxError) as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: Exception) -> ElmanError:
    # Pillow's sentence about an unknown format has the address of an object in it.
    unknown = "its format is unknown, or its beginning is damaged"
    reason = unknown if "cannot identify" in str(error) else str(error)
    return ElmanError(
        f"{where} is not a picture that can be read: {reason}",
        "restore the file, or leave its row out of the table",
    )


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "pictures are read by Pillow, which is not installed", "pip install 'elman[images]'"
        ) from error
    return Image
