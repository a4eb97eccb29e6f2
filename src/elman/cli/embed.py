"""`elman embed`: vectors of words, of tokens or words in context, and of whole lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

from elman.base.counting import counted
from elman.base.errors import UsageError, nearest
from elman.terminal.console import result, result_json, result_json_list, table, talk, visible
from elman.terminal.options import Device, Json, MaxLine, Model, argument, option
from elman.terminal.stdin import read_lines

if TYPE_CHECKING:
    from elman.evaluate.contextual import Layers
    from elman.tasks.language_model_handle import LM


def embed(
    model: Model,
    items: Annotated[
        list[str],
        argument(
            "WORD... | FILE|-",
            "Words to look up; or, with --out or --kind, a file of texts, one per line.",
        ),
    ],
    kind: Annotated[
        str | None,
        option(
            "word|token|sequence",
            "word: one vector per token, independent of context; token: one per token in its left "
            "context; sequence: one per line. [default: word, with --out sequence]",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        option(
            "all|mix|top",
            "Vectors of words in context: all layers, their mean or the top one. A line is a "
            "sentence of words separated by spaces. [default if there is no --kind: mix]",
        ),
    ] = None,
    carry_state: Annotated[
        bool,
        option(
            None,
            "With --layers: start each line in the state at the end of the previous line. By "
            "default a sentence has the same vectors wherever it is.",
            "--carry-state",
        ),
    ] = False,
    neighbours: Annotated[
        int | None, option("K", "How many nearest words to show. [default: 10]", min=1)
    ] = None,
    out: Annotated[
        Path | None, option("FILE", "Write the lines' vectors here: .npz, .h5 or .safetensors.")
    ] = None,
    device: Device = "auto",
    max_line: MaxLine = None,
    json: Json = False,
) -> None:
    """Show neighbours of words, or write vectors of lines.

    The arrays in a file of vectors are named 0, 1, ... for the lines. Their shapes are (hidden,)
    for a sequence, (tokens, width) for words and tokens, (layers, tokens, width) for all layers.
    """
    from elman.api import LM, load
    from elman.evaluate.vector_files import check_suffix, write_vectors
    from elman.tasks.language_model_handle import Kind

    if layers is not None and kind is not None:
        raise UsageError("--layers and --kind ask for different vectors", "give one of them")
    if kind is not None and kind not in get_args(Kind):
        raise UsageError(f"--kind cannot be '{kind}'", nearest(kind, get_args(Kind)))
    if out is not None:
        check_suffix(out)
        if json:
            raise UsageError("--json and --out are two outputs", "give one of them")
    handle = load(model, device=device)
    in_context = layers is not None or not isinstance(handle, LM)
    if in_context and not hasattr(handle, "contextual"):
        raise UsageError(
            f"{model} is {handle.what}, which gives no vectors of words",
            "use a language model, recurrent or bidirectional",
        )
    if in_context and kind is not None:
        raise UsageError(f"{model} is {handle.what}, which has no --kind", "use --layers")
    if carry_state and not in_context:
        raise UsageError("--carry-state is for vectors of words in context", "add --layers top")
    if not in_context and out is None and kind in (None, "word"):
        _show_words(handle, items, 10 if neighbours is None else neighbours, json)
        return
    if neighbours is not None:
        raise UsageError("--neighbours is for words alone, without vectors of lines", "drop it")
    if in_context:
        _check_file(model, items[0])
    if len(items) != 1:
        raise UsageError("vectors of lines are made from one file", "name one file, or - for stdin")
    if out is None and not json:
        raise UsageError("no output for the vectors was given", "add --out vectors.npz, or --json")
    lines = read_lines(items[0])
    if in_context:
        vectors = handle.contextual(
            (line.split() for line in lines),
            layers=cast("Layers", layers or "mix"),
            carry_state=carry_state,
        )
    else:
        vectors = handle.embeddings(lines, kind=cast(Kind, kind or "sequence"))
    if out is None:
        result_json_list(vector.tolist() for vector in vectors)
    else:
        talk(counted(write_vectors(out, vectors), "line"))
        result(str(out))


def _check_file(model: str, item: str) -> None:
    """Raise an error if `item` is a word, as with other models, instead of a file."""
    from elman.text.sources import expand

    try:
        if item != "-":
            expand(item)
    except UsageError as error:
        raise UsageError(
            f"{error.message}, and a word alone has no vector in context",
            f"name a file of sentences, or try: elman neighbours {model} FILE {item}",
        ) from error


def _show_words(lm: LM, words: list[str], k: int, json: bool) -> None:
    found = {word: lm.neighbours(word, k) for word in words}
    if json:
        result_json(
            [
                {
                    "word": word,
                    "vector": lm.word_vector(word).tolist(),
                    "neighbours": [{"token": token, "cosine": cosine} for token, cosine in near],
                }
                for word, near in found.items()
            ]
        )
        return
    rows = [
        (visible(word), visible(token), f"{cosine:.4f}")
        for word, near in found.items()
        for token, cosine in near
    ]
    result(table(rows, header=("word", "neighbour", "cosine")))
