"""Pre-trained word vectors for a run: open them, and keep a copy in the run folder.

A run folder must be self-contained, so the source of the vectors is copied into its folder
`embeddings`: the files of a run folder or of published weights, or a table of word vectors. Only a
frozen embedder's weights are read from there; fine-tuned ones are in model.safetensors.
`Task.embedder` says which models give vectors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from elman.base.documents import checksum, intact, read_json, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import explained, replacing
from elman.base.tables import imported
from elman.models.embedder import Embedder
from elman.models.embeddings import EmbeddingsConfig
from elman.models.static_vectors import StaticVectors
from elman.runs.run_folder import CONFIG_FILE, EMBEDDINGS_FOLDER, METRICS_FILE
from elman.tasks import Task, all_tasks, task_named
from elman.tasks.opening import open_run
from elman.text.word_vectors import Vectors, read_word_vectors
from elman.train import checkpoint

WORDS_FILE = "words.json"
VECTORS_FILE = "vectors.safetensors"


def set_up_embedder(config: EmbeddingsConfig, out: Path, resume: bool) -> Embedder | None:
    """Open the embeddings, copied to `out` first for a new run; None if `config` names none."""
    if not config.path:
        return None
    if resume:
        return open_kept(config, out)
    path = Path(config.path).expanduser()
    # Remove the copy of an earlier run that failed in this folder.
    shutil.rmtree(out / EMBEDDINGS_FOLDER, ignore_errors=True)
    if path.is_file():
        _keep_table(read_word_vectors(path, config.max_words), out / EMBEDDINGS_FOLDER)
    elif path.is_dir():
        open_embedder(path)  # raises an error before anything is copied
        _keep_files(path, out / EMBEDDINGS_FOLDER)
    else:
        raise UsageError(
            f"there are no embeddings at {config.path}",
            "name the run folder of a language model, or a file of word vectors",
        )
    return open_kept(config, out)


def open_kept(config: EmbeddingsConfig, path: Path) -> Embedder | None:
    """Open the embedder of the run folder `path`; None if it has none."""
    if not config.path:
        return None
    folder = path / EMBEDDINGS_FOLDER
    if not folder.is_dir():
        raise ElmanError(
            f"{path} has no folder {EMBEDDINGS_FOLDER} with its word vectors",
            "copy the whole run folder, or train the model again",
        )
    if not (folder / WORDS_FILE).is_file():
        return open_embedder(folder)
    words = read_json(folder / WORDS_FILE)
    tensors, header = checkpoint.read(folder / VECTORS_FILE)
    checkpoint.check_finite(tensors, folder / VECTORS_FILE)
    vectors_VD = tensors.get("vectors")
    fitting = isinstance(words, list) and header.get("words") in (None, _check(words))
    if not fitting or vectors_VD is None or len(words) != len(vectors_VD):
        raise ElmanError(
            f"{folder / VECTORS_FILE} and {WORDS_FILE} do not belong together",
            "copy the whole run folder, or train the model again",
        )
    with intact(folder / WORDS_FILE):
        return StaticVectors(words, vectors_VD)


def _keep_table(vectors: Vectors, folder: Path) -> None:
    words, array_VD = vectors
    write_json(folder / WORDS_FILE, words)
    tensors = {"vectors": torch.from_numpy(array_VD)}
    checkpoint.write(folder / VECTORS_FILE, tensors, {"words": _check(words)})


def _check(words: list[str]) -> str:
    return checksum(json.dumps(words).encode())


def _keep_files(source: Path, folder: Path) -> None:
    """Copy the files of a model, without metrics.jsonl.

    A link in a run folder is refused: one that someone else made could lead to a private file,
    which would then be a part of this run.
    """
    published = [name for task in all_tasks() for name in task.published_files]
    is_run = (source / CONFIG_FILE).is_file()
    with explained(folder):
        for file in sorted(source.iterdir()):
            wanted = file.name != METRICS_FILE if is_run else file.name in published
            if file.is_file() and wanted and not file.name.startswith("."):
                if is_run and file.is_symlink():
                    raise UsageError(
                        f"{file} is a symbolic link", "replace it by the file it leads to"
                    )
                with replacing(folder / file.name) as temporary:
                    shutil.copyfile(file, temporary)


def open_embedder(path: Path | str) -> Embedder:
    """Open a run folder, or published files that a task reads, as an embedder."""
    for task in () if (Path(path) / CONFIG_FILE).is_file() else all_tasks():
        opened = None if task.opens is None else imported(task.opens)(Path(path), str(path), "cpu")
        if opened is not None and task.embedder is not None:
            return embedder_of(task, opened.model, None, str(path))
    run = open_run(path, "cpu")
    return embedder_of(task_named(run.config.task), run.model, run.tokenizer, str(path))


def embedder_of(task: Task | None, model: Any, tokenizer: Any, name: str) -> Embedder:
    """The embedder of an opened model of a task; errors call it `name`."""
    if task is None or task.embedder is None:
        raise UsageError(
            f"{name} has no word vectors that depend on the context",
            "name the run folder of a recurrent, fixed-window or bidirectional language model",
        )
    return imported(task.embedder)(model, tokenizer).eval()
