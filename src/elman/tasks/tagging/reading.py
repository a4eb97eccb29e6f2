"""Tagged sentences: treebanks in CoNLL-U, column files such as CoNLL-2003 and WNUT, plain text.

`read_tagged` reads sentences one by one and keeps the lines they came from, so that
`Sentence.retagged` can write them back with other tags and everything else unchanged: comments,
ranges of multi-word tokens, empty nodes, further columns.

    conllu     ten columns between tabs; `#` comments; ids 1, 2, ...; 3-4 a range, 5.1 an empty node
    columns    one word per line, its tags after it, columns between tabs or spaces (words
               then contain none); an empty line ends a sentence; -DOCSTART- lines mark documents
    text       ordinary text, one sentence per line: punctuation is split off the words
    words      one sentence per line, words between spaces

Errors name the file and the line. The `conllu` package is not used: its errors have no line
numbers, and it does not write back byte for byte what it read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, cast, get_args

from elman.base.errors import ElmanError, UsageError, nearest
from elman.text.words import split_words

Format = Literal["conllu", "columns", "text", "words"]
CONLLU_COLUMNS = (
    *("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"),
)
DOCUMENT = "-DOCSTART-"
WORD_NAMES = ("word", "words", "token", "tokens", "form")
TAG_NAMES = (
    *("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "entity"),
    *("pos", "pos_tag", "pos_tags", "upos", "xpos"),
)
"""What the first and the last column may be called in a header, in lower case."""
_OTHER_ID = re.compile(r"[0-9]+(-|\.)[0-9]+")
_TAG = re.compile(r"[A-Z]+[A-Z0-9$]*(-\w+)*|\W+")
_SUFFIXES: dict[str, Format] = {".conllu": "conllu", ".conll": "columns", ".tsv": "columns"}
_LOOK_AHEAD = 200
"""Lines from which the format is guessed if the file name does not tell it."""
_MOST_COLUMNS = 12
"""Lines with more fields than this are text: no CoNLL format has that many columns."""


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, their tags, and the lines they came from."""

    words: list[str]
    tags: list[str | None]
    """One per word; None if the file has none."""
    lines: list[str]
    """All of its lines, with line ends, and the empty line after it."""
    places: list[int]
    """The index in `lines` of each word's line."""
    column: int = -1
    """The column of the tags, from 0; -1 in plain text."""

    def retagged(self, tags: Iterable[str]) -> str:
        """The sentence in the format of its file, with these tags.

        A missing column is added; plain text becomes a word and a tag per line.
        """
        if self.column < 0:
            rows = [f"{word}\t{tag}\n" for word, tag in zip(self.words, tags, strict=True)]
            return "".join(rows) + "\n"
        lines = list(self.lines)
        for place, tag in zip(self.places, tags, strict=True):
            lines[place] = _with_cell(lines[place], self.column, tag)
        return "".join(lines)


def read_tagged(
    lines: Iterable[str],
    name: str,
    *,
    format: Format | None = None,
    column: str = "",
    tags_needed: bool = True,
) -> Iterator[Sentence]:
    """Read sentences from `lines` (line ends included) of the file called `name`.

    `format` None: guess it. `column` is a column name of CoNLL-U (default: upos) or a number from 1
    (default: the last; without `tags_needed`, the one after the only one). Blocks without words,
    such as document marks, are returned too.
    """
    if format is None:
        beginning = list(islice(lines := iter(lines), _LOOK_AHEAD))
        lines = chain(beginning, lines)
        format = guess_format(name, beginning)
        if format == "text" and tags_needed:
            format = "columns"
    if format == "conllu":
        yield from _conllu(lines, name, conllu_column(column))
    elif format == "columns":
        yield from _columns(lines, name, column, tags_needed)
    else:
        if tags_needed:
            raise UsageError(
                f"{name} has no tags: it is plain text", "give a CoNLL-U file, or columns"
            )
        for line in lines:
            words = split_words(line) if format == "text" else line.split()
            yield Sentence(words, [None] * len(words), [line], [])


def guess_format(name: str, lines: Iterable[str]) -> Format:
    """Guess the format from the file name, or else from its first lines."""
    suffixes = [s for s in Path(name).suffixes if s not in (".gz", ".zst")]
    if suffixes and suffixes[-1] in _SUFFIXES:
        return _SUFFIXES[suffixes[-1]]
    full = [line.rstrip("\r\n") for line in lines]
    full = [line for line in full if line]
    tokens = [line for line in full if not line.startswith("#")]
    if tokens and all(line.count("\t") == len(CONLLU_COLUMNS) - 1 for line in tokens):
        return "conllu"
    if full and all("\t" in line for line in full):
        return "columns"
    # Columns between spaces: the same small number on every line, the last one like a tag and not
    # always punctuation, in which sentences end too.
    rows = [line.split(" ") for line in full]
    regular = len({len(row) for row in rows}) == 1 and 1 < len(rows[0]) <= _MOST_COLUMNS
    if regular and len(rows) > 1 and _is_header(rows[0], len(rows[0]) - 1):
        rows = rows[1:]
    last = [row[-1] for row in rows] if regular else []
    tagged = all(map(_TAG.fullmatch, last)) and any(tag[:1].isalpha() for tag in last)
    return "columns" if tagged else "text"


def checked_format(format: str) -> Format | None:
    """Check the name of a format; None for auto."""
    if format == "auto":
        return None
    if format not in get_args(Format):
        raise UsageError(
            f"there is no format called '{format}'", nearest(format, ("auto", *get_args(Format)))
        )
    return cast(Format, format)


def conllu_column(column: str) -> int:
    """The index of a CoNLL-U column, given by name or by number from 1; default: upos."""
    if not column:
        return CONLLU_COLUMNS.index("upos")
    if column.isdigit() and 1 <= int(column) <= len(CONLLU_COLUMNS):
        return int(column) - 1
    if column.lower() not in CONLLU_COLUMNS:
        raise UsageError(
            f"CoNLL-U has no column called '{column}'", nearest(column, CONLLU_COLUMNS)
        )
    return CONLLU_COLUMNS.index(column.lower())


def _conllu(lines: Iterable[str], name: str, column: int) -> Iterator[Sentence]:
    for first, block in _blocks(lines):
        words: list[str] = []
        tags: list[str | None] = []
        places: list[int] = []
        for offset, line in enumerate(block):
            text = line.rstrip("\r\n")
            if not text or text.startswith("#"):
                continue
            cells = text.split("\t")
            where = f"{name}, line {first + offset}"
            if len(cells) != len(CONLLU_COLUMNS):
                raise ElmanError(
                    f"{where}: {len(cells)} columns instead of CoNLL-U's {len(CONLLU_COLUMNS)}",
                    "fix the line; if the file is not CoNLL-U, change its ending .conllu",
                )
            if _OTHER_ID.fullmatch(cells[0]):
                continue
            if cells[0] != str(len(words) + 1):
                raise ElmanError(
                    f"{where}: the id is '{cells[0][:50]}' instead of {len(words) + 1}",
                    "ids count the words of a sentence from 1; an empty line ends a sentence",
                )
            if not cells[1]:
                raise ElmanError(f"{where}: the word is missing", "its column may not be empty")
            words.append(cells[1])
            tags.append(None if cells[column] in ("_", "") else cells[column])
            places.append(offset)
        yield Sentence(words, tags, block, places, column)


def _columns(lines: Iterable[str], name: str, column: str, needed: bool) -> Iterator[Sentence]:
    if column and not (column.isdigit() and int(column) >= 1):
        raise UsageError(
            f"the columns of {name} have no names, so there is no '{column}'",
            "give the number of the column, from 1",
        )
    num_columns = index = 0
    for first, block in _blocks(lines):
        words: list[str] = []
        tags: list[str | None] = []
        places: list[int] = []
        for offset, line in enumerate(block):
            text = line.rstrip("\r\n")
            if not text.strip(" \t"):
                continue
            cells = _cells(text)
            where = f"{name}, line {first + offset}"
            if not num_columns:
                num_columns = len(cells)
                index = int(column) - 1 if column else max(1, num_columns - 1)
                if needed and not 1 <= index < num_columns:
                    raise ElmanError(
                        f"{where}: there is no column {index + 1} of tags in '{text[:50]}'",
                        "a line is a word and its tags, separated by tabs or spaces",
                    )
                if needed and _is_tagged_sentence(cells):
                    raise ElmanError(
                        f"{where}: several words with tags, such as '{cells[0][:50]}'",
                        "write one word per line, then its tag, and an empty line after a sentence",
                    )
                if first + offset == 1 and _is_header(cells, index):
                    continue
            if len(cells) != num_columns:
                raise ElmanError(
                    f"{where}: {len(cells)} columns instead of {num_columns} as before",
                    "every line has a word and its tags; an empty line ends a sentence",
                )
            if index < num_columns:
                cells[index] = cells[index].strip()
            if needed and not cells[index]:
                raise ElmanError(f"{where}: the tag is missing", "no column may be empty")
            words.append(cells[0])
            tags.append(cells[index] if index < num_columns else None)
            places.append(offset)
        if words[:1] == [DOCUMENT]:
            words, tags, places = [], [], []
        yield Sentence(words, tags, block, places, index)


def _is_tagged_sentence(cells: Sequence[str]) -> bool:
    """Whether a line is not of columns, but a sentence as word/TAG word/TAG, or with `_`."""
    return len(cells) > 2 and any(
        all(0 < c.find(mark) < len(c) - 1 for c in cells) for mark in "/_"
    )


def _is_header(cells: Sequence[str], index: int) -> bool:
    names = [cell.strip().lower() for cell in cells]
    return names[0] in WORD_NAMES and index < len(names) and names[index] in TAG_NAMES


def _blocks(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Blocks of lines, each up to and including an empty one, with the first line's number."""
    block: list[str] = []
    first = 1
    for number, line in enumerate(lines, start=1):
        block.append(line)
        if not line.strip("\r\n\t "):
            yield first, block
            block, first = [], number + 1
    if block:
        yield first, block


def _cells(text: str) -> list[str]:
    """The columns of a line; white space other than tabs and spaces belongs to words."""
    return text.split("\t") if "\t" in text else [cell for cell in text.split(" ") if cell]


def _with_cell(line: str, column: int, value: str) -> str:
    """Replace one cell of a line, and nothing else."""
    text = line.rstrip("\r\n")
    end = line[len(text) :]
    if "\t" in text:
        cells = text.split("\t")
        if column == len(cells):
            cells.append("")
        cells[column] = value
        return "\t".join(cells) + end
    spans = [match.span() for match in re.finditer(r"[^ ]+", text)]
    if column >= len(spans):
        return f"{text.rstrip(' ')}\t{value}{end}" if len(spans) == 1 else f"{text} {value}{end}"
    start, stop = spans[column]
    return text[:start] + value + text[stop:] + end
