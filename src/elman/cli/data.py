"""`elman data`: what a text file is, and its sentences as words."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from elman.base.counting import counted
from elman.cli.next_token import visible
from elman.terminal.console import number, result, result_json, size, table
from elman.terminal.options import Json

app = typer.Typer(help="Explain your own text.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Text files, folders, or built-in names.", show_default=False
        ),
    ],
    json: Json = False,
) -> None:
    """Say what a text is: size, damage, vocabulary, and which tokenizer would suit it."""
    from elman.evaluate.data_check import check as look

    found = look(files)
    if json:
        result_json(found)
    else:
        result(report(found))
    if found["encoding_errors"]["lines"] or found["nul_bytes"]:
        raise typer.Exit(1)


@app.command()
def words(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Text files, treebanks (CoNLL-U), column files, folders, or built-in names.",
            show_default=False,
        ),
    ],
) -> None:
    """Write sentences a line each, with spaces between their words: what ELMo learns from.

    Words of a treebank are as its first column of words has them; in ordinary text, a sentence a
    line, punctuation is split off the words.
    """
    from elman.tasks.tagging.reading import read_tagged
    from elman.text.sources import expand, file_lines

    for path in expand(files):
        for sentence in read_tagged(file_lines(path), str(path), tags_needed=False):
            if sentence.words:
                # A word of a treebank may have a space inside it, such as a number.
                result(" ".join(word.replace(" ", "") for word in sentence.words))


def report(found: dict[str, Any]) -> str:
    """The findings for a person."""
    tokenizer, unseen = found["tokenizer"], found["out_of_vocabulary"]
    on_disk = found["bytes_on_disk"]
    rows = [
        ("files", ", ".join(found["files"])),
        (
            "size",
            size(found["bytes"])
            + (f" ({size(on_disk)} on disk)" if on_disk != found["bytes"] else ""),
        ),
        ("lines", f"{found['lines']:,} (longest: {found['longest_line']:,} characters)"),
        ("blank lines", number(found["blank_lines"])),
        ("repeated lines", number(found["duplicate_lines"])),
        ("words", f"{found['words']:,} ({found['word_types']:,} different)"),
        ("characters", f"{found['characters']:,} ({found['character_types']:,} different)"),
        ("tokenizer", f"{tokenizer['kind']}: {tokenizer['reason']}"),
        ("vocabulary", number(found["vocab_size"])),
        ("tokens", ("" if found["tokens_exact"] else "about ") + number(found["tokens"])),
        ("new words in the last tenth", _unseen(unseen["words"])),
        ("new characters in the last tenth", _unseen(unseen["characters"])),
    ]
    lines = [table(rows)]
    errors = found["encoding_errors"]
    if errors["lines"]:
        lines += ["", f"not UTF-8 ({counted(errors['lines'], 'line')}):"]
        lines += [
            f"  {e['file']}, line {e['line']:,}, column {e['column']:,}: "
            f"byte {e['byte']} in {e['text']!r}"
            for e in errors["first"]
        ]
    if found["problems"]:
        lines += ["", *(f"problem: {problem}" for problem in found["problems"])]
    return "\n".join(lines)


def _unseen(found: dict[str, Any]) -> str:
    examples = ", ".join(visible(example) for example in found["examples"][:8])
    about = f"{found['tokens']:,} ({found['share']:.2%}), {found['types']:,} different"
    return f"{about}: {examples}" if examples else about
