"""`elman tag`: tag sentences, in the format that they came in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from elman.base.errors import UsageError
from elman.terminal.console import result, result_json_list, write
from elman.terminal.options import Json, MaxLine, argument, option
from elman.terminal.stdin import noted, stdin_lines

if TYPE_CHECKING:
    from elman.tasks.tagging.handle import Tagger
    from elman.tasks.tagging.reading import Sentence


def tag(
    handle: Tagger,
    file: Annotated[
        str,
        argument("[FILE|-]", "CoNLL-U, columns, or text with one sentence per line; - is stdin."),
    ] = "-",
    format: Annotated[
        str,
        option(
            "auto|conllu|columns|text|words",
            "How to read it; words: one sentence per line, already split at spaces.",
        ),
    ] = "auto",
    column: Annotated[
        str | None,
        option("NAME|N", "The column to write. [default: the one it was trained on]"),
    ] = None,
    max_line: MaxLine = None,
    json: Json = False,
) -> None:
    """Tag sentences; the output has the format of the input.

    In CoNLL-U and column files only the column of the tags changes: comments, ranges, empty nodes
    and other columns are kept. Text becomes a word and its tag per line. With --json, a list of
    objects with words and tags.
    """
    from elman.tasks.tagging.reading import checked_format, read_tagged
    from elman.text.sources import expand, file_lines

    wanted = handle.run.config.data.column if column is None else column
    form = checked_format(format)

    def lines() -> Iterator[tuple[str, Iterator[str]]]:
        if file == "-":
            yield "stdin", noted(stdin_lines())
        else:
            for path in expand([Path(file)]):
                yield str(path), file_lines(path)

    sentences = (
        sentence
        for name, text in lines()
        for sentence in read_tagged(text, name, format=form, column=wanted, tags_needed=False)
    )
    read, kept = tee(sentences if column is None else map(_in_columns, sentences))
    tagged = zip(kept, handle.tag_all(sentence.words for sentence in read), strict=True)
    if json:
        result_json_list({"words": s.words, "tags": tags} for s, tags in tagged if s.words)
        return
    for sentence, tags in tagged:
        write(sentence.retagged(tags))


def _in_columns(sentence: Sentence) -> Sentence:
    """Refuse plain text, which has no columns to choose from."""
    if sentence.column < 0:
        raise UsageError("--column has no effect on plain text", "drop it, or see --format")
    return sentence


def check_tag(*, format: str, **_: object) -> None:
    """Refuse an unknown format before the model is opened."""
    from elman.tasks.tagging.reading import checked_format

    checked_format(format)


def words(
    files: Annotated[
        list[str],
        argument("FILE...", "Text, treebanks (CoNLL-U), column files, folders, or built-in names."),
    ],
    max_line: MaxLine = None,
) -> None:
    """Write one sentence per line, its words separated by spaces.

    Words of a treebank are those of its first column of words. In ordinary text with a sentence per
    line, punctuation is split off.
    """
    from elman.tasks.tagging.reading import read_tagged
    from elman.text.sources import expand, file_lines

    for path in expand(files):
        for sentence in read_tagged(file_lines(path), str(path), tags_needed=False):
            if sentence.words:
                # A word of a treebank may contain a space, such as a number.
                result(" ".join(word.replace(" ", "") for word in sentence.words))
