"""`elman convert`: convert a model to another format. Each task converts its own models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError, nearest
from elman.base.tables import imported
from elman.recipes.hugging_face import is_hugging_face, read_hugging_face, write_hugging_face
from elman.recipes.onnx import ONNX_FILE, write_onnx
from elman.runs.lock import locked
from elman.runs.new_folder import check_free, filling
from elman.runs.packaged import located
from elman.runs.run_folder import CONFIG_FILE, MODEL_FILE, check_run_folder, require
from elman.tasks import all_tasks, task_named
from elman.tasks.opening import open_run, read_config
from elman.text.word_vectors import write_word_vectors

VECTOR_FILES = (".vec", ".txt")
"""Suffixes of files of word vectors, to which the models of many tasks convert."""
FORMS = ("hf",)
"""Folders that a name does not tell from a run folder."""
FILES = (".bin", ".fst", ".gz", ".json", ".lm", ".onnx", ".pt", ".safetensors", ".txt", ".zst")
"""Suffixes of files; a name without these or a task's own is a folder."""


def convert(
    model: str,
    out: str,
    *,
    to: str | None = None,
    side: str | None = None,
    quantise: str | None = None,
    layout: str | None = None,
) -> dict[str, Any]:
    """Write `model` in the format that the name `out` implies, or `to` names; return a summary.

    `side` chooses the word vectors of a model that has two tables: the source's or the target's.
    With `quantise` (int8), a run folder becomes one with weights of one byte, or an ONNX file of
    such weights. With `to` (hf), a run folder becomes one for transformers, which converts back.
    With `layout` (plain or compact), an n-gram model becomes a run folder of that layout, with
    numbers of few bits if `quantise` gives them: 8, or 8,6 for probabilities and back-off weights.
    """
    options = {"quantise": quantise, "side": side, "layout": layout}
    if out.lower().endswith(".json"):
        _check_unused({"to": to, **options}, "a tokenizer.json")
        found = _write_tokenizer(model, Path(out))
    else:
        found = _write_model(model, out, to, options)
    return {**found, "out": out}


def _write_model(
    model: str, out: str, to: str | None, options: Mapping[str, str | None]
) -> dict[str, Any]:
    quantise, side, layout = (options[name] for name in ("quantise", "side", "layout"))
    source, target = located(model), Path(out)
    own = [suffix for task in all_tasks() for suffix in task.convert_suffixes]
    is_onnx, is_vectors = out.lower().endswith(ONNX_FILE), out.lower().endswith(VECTOR_FILES)
    is_file = is_onnx or is_vectors or out.lower().endswith(tuple(own))
    to_folder = not is_file and (out.endswith("/") or target.suffix.lower() not in FILES)
    if not (is_file or to_folder):
        raise UsageError(
            f"no model converts to '{target.suffix}', as in {out}", _possible(source, target)
        )
    _check_target(target, to_folder)
    if {"*", "+"} & set(model) and not source.exists():
        raise UsageError("a mixture cannot be converted", "convert its models one by one")
    if not source.exists():
        check_run_folder(source)  # names the run folder that may be meant
    if to is not None:
        if to not in FORMS:
            raise UsageError(f"no model converts to '{to}'", nearest(to, FORMS))
        if is_file or any(value is not None for value in options.values()):
            raise UsageError("--to hf writes a folder of whole weights", "name a new folder alone")
        return write_hugging_face(source, target)
    if to_folder and is_hugging_face(source):
        _check_unused(options, "a folder for transformers")
        return read_hugging_face(source, target)
    if layout is not None and (not to_folder or side is not None):
        raise UsageError("a layout is that of a run folder", "name a new folder alone")
    if side is not None and not is_vectors:
        raise UsageError("only word vectors have a side", "drop it, or write a .vec file")
    if quantise is not None and not (to_folder or is_onnx):
        raise UsageError(
            f"--quantise has no effect on a {target.suffix} file",
            "name a new folder or a .onnx file, or drop --quantise",
        )
    if is_onnx:
        return write_onnx(source, target, quantise)
    if layout is not None or quantise not in (None, "int8"):
        (write_layout,) = (task.convert_layout for task in all_tasks() if task.convert_layout)
        found: dict[str, Any] = imported(write_layout)(source, target, layout, quantise)
        return found
    if quantise is not None:
        return _write_int8(source, target)
    if is_vectors:
        return _write_vectors(source, target, side)
    written = _write_by_task(source, target, to_folder)
    if written is None:
        what = f"the folder {out}" if to_folder else f"'{target.suffix}'"
        raise UsageError(f"{model} cannot be converted to {what}", _possible(source, target))
    return written


def _possible(source: Path, target: Path) -> str:
    """What a run converts to; else what converts to the suffix of `target`, or the suffixes."""
    if (source / CONFIG_FILE).is_file():
        task = task_named(read_config(source).task)
        forms = [f"OUT{suffix}" for suffix in task.convert_suffixes] or ["a folder OUT"]
        forms = forms if task.convert_help else []  # empty: it inherits `convert`
        forms += ["OUT.vec (word vectors)"] * (task.word_vectors is not None)
        forms += ["OUT.onnx"] * (task.onnx is not None)
        forms += ["--to hf OUT (for transformers)"] * (task.hugging_face is not None)
        forms += ["--quantise int8 OUT"] * (source / MODEL_FILE).is_file()
        forms += ["--layout compact OUT", "--quantise 8 OUT"] * (task.convert_layout is not None)
        if not forms:
            return f"there is no other format for {task.what}"
        return f"{task.what} converts to: {', '.join(forms)}"
    suffix = target.suffix.lower()
    makers = [task.convert_help for task in all_tasks() if suffix in task.convert_suffixes]
    if makers:
        return "; ".join(filter(None, makers))
    own = [suffix for task in all_tasks() for suffix in task.convert_suffixes]
    known = dict.fromkeys([*own, *VECTOR_FILES, ONNX_FILE, ".json"])
    return f"OUT ends in one of {', '.join(known)}, or is a folder; see elman convert --help"


def _check_target(target: Path, to_folder: bool) -> None:
    """Refuse a target that exists, unless it is an empty folder and a folder is to be written."""
    if to_folder and target.is_dir():
        with locked(target):  # no other process fills it, and nothing is left of one that did
            if not any(target.iterdir()):
                return
    check_free(target)


def _write_by_task(source: Path, target: Path, to_folder: bool) -> dict[str, Any] | None:
    """Convert by the first task that can; return None if no task can."""
    # First the task whose files these are: asking another one may mean importing torch.
    tasks = list(all_tasks())
    ends = [str(path).lower().endswith for path in (source, target)]
    tasks.sort(key=lambda task: not any(end(tuple(task.convert_suffixes)) for end in ends))
    for task in tasks:
        writes = to_folder or str(target).lower().endswith(tuple(task.convert_suffixes))
        if task.convert is not None and writes:
            found: dict[str, Any] | None = imported(task.convert)(source, target, to_folder)
            if found is not None:
                return found
    return None


def _check_unused(options: Mapping[str, str | None], what: str) -> None:
    """Refuse options that a conversion does not read."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} has no effect on {what}", f"drop --{name}")


def _write_int8(source: Path, target: Path) -> dict[str, Any]:
    """Copy a run folder without its train state, with weights of one byte."""
    from elman.ngrams.storage import MODEL_FILE as NGRAM_FILE
    from elman.train import checkpoint, int8_files

    if (source / NGRAM_FILE).is_file():
        raise UsageError(f"{source} is an n-gram model, without weights", "use --quantise 8")
    require(source, CONFIG_FILE, MODEL_FILE)
    read_config(source)
    tensors, header = checkpoint.read(source / MODEL_FILE)
    with filling(target, CONFIG_FILE) as folder:
        for path in source.iterdir():
            if path.is_file() and path.name != MODEL_FILE:
                shutil.copyfile(path, folder / path.name)
        checkpoint.write(
            folder / MODEL_FILE, int8_files.pack(tensors), {**header, **int8_files.HEADER}
        )
    size = (target / MODEL_FILE).stat().st_size
    return {"bytes": size, "notes": ["weights are rounded to one byte each"]}


def _write_tokenizer(model: str, target: Path) -> dict[str, Any]:
    """Write a model of SentencePiece or an encoding of tiktoken as a tokenizer.json."""
    from elman.tokens.sentence_pieces import SUFFIX, tied_note
    from elman.tokens.tiktoken_encodings import PREFIX, read_encoding
    from elman.tokens.tokenizer import Tokenizer

    if model.startswith(PREFIX):
        check_free(target)
        tokenizer, notes = Tokenizer(read_encoding(model)), []
    elif model.lower().endswith(SUFFIX):
        check_free(target)
        tokenizer, notes = Tokenizer.load(Path(model)), tied_note(Path(model))
    else:
        raise UsageError(
            f"{model} does not convert to a tokenizer.json",
            f"name a {SUFFIX} file of SentencePiece, or {PREFIX}NAME; a run folder has its own",
        )
    tokenizer.save(target)
    return {"tokens": tokenizer.vocab_size, "bytes": target.stat().st_size, "notes": notes}


def _write_vectors(source: Path, target: Path, side: str | None) -> dict[str, Any]:
    from elman.tasks.word_tables import word_table  # imports torch

    if not (source / CONFIG_FILE).is_file():
        raise UsageError(
            f"{source} has no vocabulary with word vectors", "name the run folder of a neural model"
        )
    words, vectors_VE = word_table(open_run(source), side)
    written = write_word_vectors(target, words, vectors_VE.float().cpu().numpy())
    left_out = len(words) - written
    return {
        "words": written,
        "size": vectors_VE.shape[1],
        "bytes": target.stat().st_size,
        "notes": [f"{left_out:,} tokens without a spelling of their own left out"]
        if left_out
        else [],
    }
