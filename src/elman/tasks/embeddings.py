"""Pre-trained word vectors for a task's run: open them, and keep a copy in the run folder.

A run folder is all that is needed to use a model, so what the vectors are computed from is copied
into it once, under `embeddings`: a run folder or published weights as they are, a file of word
vectors as a table. A frozen embedder's weights are stored nowhere else; a fine-tuned one's are in
model.safetensors with the rest, and the copy says what kind of network they belong to. Which
models give vectors is each task's to say (`Task.embedder`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, read_json, replacing, write_json
from elman.models.embedder import Embedder
from elman.models.embeddings import EmbeddingsConfig
from elman.models.static_vectors import StaticVectors
from elman.runs.run_folder import CONFIG_FILE, EMBEDDINGS_FOLDER, METRICS_FILE
from elman.tasks import all_tasks, task_named
from elman.tasks.opening import open_run
from elman.text.word_vectors import Vectors, read_word_vectors
from elman.train import checkpoint

WORDS_FILE = "words.json"
VECTORS_FILE = "vectors.safetensors"


def set_up_embedder(config: EmbeddingsConfig, out: Path, resume: bool) -> Embedder | None:
    """What `config` names, opened, and for a new run copied to `out`; None where it names none."""
    if not config.path:
        return None
    if resume:
        return open_kept(config, out)
    path = Path(config.path).expanduser()
    # What a run that died in this folder left behind would be taken for this one's.
    shutil.rmtree(out / EMBEDDINGS_FOLDER, ignore_errors=True)
    if path.is_file():
        _keep_table(read_word_vectors(path, config.max_words), out / EMBEDDINGS_FOLDER)
    elif path.is_dir():
        open_embedder(path)  # says what is wrong with it before anything is copied
        _keep_files(path, out / EMBEDDINGS_FOLDER)
    else:
        raise UsageError(
            f"there are no embeddings at {config.path}",
            "name the run folder of a language model, or a file of word vectors",
        )
    return open_kept(config, out)


def open_kept(config: EmbeddingsConfig, path: Path) -> Embedder | None:
    """The embedder of the run folder `path`; None where it has none."""
    if not config.path:
        return None
    folder = path / EMBEDDINGS_FOLDER
    if not folder.is_dir():
        raise ElmanError(
            f"{path} has no folder {EMBEDDINGS_FOLDER}, which its word vectors are in",
            "copy the whole run folder, or train the model again",
        )
    if not (folder / WORDS_FILE).is_file():
        return open_embedder(folder)
    words = read_json(folder / WORDS_FILE)
    tensors, _ = checkpoint.read(folder / VECTORS_FILE)
    vectors_VD = tensors.get("vectors")
    if not isinstance(words, list) or vectors_VD is None or len(words) != len(vectors_VD):
        raise ElmanError(
            f"{folder / VECTORS_FILE} and {WORDS_FILE} do not belong together",
            "copy the whole run folder, or train the model again",
        )
    return StaticVectors(words, vectors_VD)


def _keep_table(vectors: Vectors, folder: Path) -> None:
    words, array_VD = vectors
    write_json(folder / WORDS_FILE, words)
    checkpoint.write(folder / VECTORS_FILE, {"vectors": torch.from_numpy(array_VD)}, {})


def _keep_files(source: Path, folder: Path) -> None:
    """Copy the files of a model, without the log of its training."""
    published = [name for task in all_tasks() for name in task.published_files]
    is_run = (source / CONFIG_FILE).is_file()
    try:
        for file in sorted(source.iterdir()):
            wanted = file.name != METRICS_FILE if is_run else file.name in published
            if file.is_file() and wanted and not file.name.startswith("."):
                with replacing(folder / file.name) as temporary:
                    shutil.copyfile(file, temporary)
    except OSError as error:
        raise explain(error, folder) from error


def open_embedder(path: Path | str, device: str = "cpu") -> Embedder:
    """Open a run folder, or published files that a task reads, as a source of word vectors."""
    for task in () if (Path(path) / CONFIG_FILE).is_file() else all_tasks():
        opened = None if task.opens is None else task.part("opens")(Path(path), str(path), device)
        if opened is not None and task.embedder is not None:
            return embedder_of(task.name, opened.model, None, str(path))
    run = open_run(path, device)
    return embedder_of(run.config.task, run.model, run.tokenizer, str(path))


def embedder_of(task_name: str, model: Any, tokenizer: Any, name: str) -> Embedder:
    """The word vectors of an opened model of a task ("" for none); errors call it `name`."""
    make = task_named(task_name).part("embedder") if task_name else None
    if make is None:
        raise UsageError(
            f"{name} has no word vectors that depend on the context",
            "name the run folder of a recurrent or bidirectional language model",
        )
    embedder: Embedder = make(model, tokenizer)
    return embedder.eval()
