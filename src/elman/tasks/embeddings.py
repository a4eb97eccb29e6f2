"""Pre-trained word vectors for a task's run: opened, and kept in the run folder.

A run folder is all that is needed to use a model, so what the vectors are computed from is copied
into it once, under `embeddings`: a run folder or published weights as they are, a file of word
vectors as a table. A frozen embedder's weights are then nowhere else; a fine-tuned one's are in
model.safetensors with the rest, and the copy says what kind of network they belong to.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, read_json, replacing, write_json
from elman.models.embedder import Embedder
from elman.models.embeddings import EmbeddingsConfig
from elman.models.static_vectors import StaticVectors
from elman.tasks.elmo.files import OPTIONS_FILE, WEIGHTS_FILE, is_elmo
from elman.tasks.embedders import open_embedder
from elman.text.word_vectors import Vectors, read_word_vectors
from elman.train import checkpoint
from elman.train.loop import METRICS_FILE

FOLDER = "embeddings"
"""Where a run folder has them."""
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
    shutil.rmtree(out / FOLDER, ignore_errors=True)
    if path.is_file():
        _keep_table(read_word_vectors(path, config.max_words), out / FOLDER)
    elif path.is_dir():
        open_embedder(path)  # says what is wrong with it before anything is copied
        _keep_files(path, out / FOLDER)
    else:
        raise UsageError(
            f"there are no embeddings at {config.path}",
            "name a run of `elman train elmo` or `elman train lm`, or a file of word vectors",
        )
    return open_kept(config, out)


def open_kept(config: EmbeddingsConfig, path: Path) -> Embedder | None:
    """The embedder of the run folder `path`; None where it has none."""
    if not config.path:
        return None
    folder = path / FOLDER
    if not folder.is_dir():
        raise ElmanError(
            f"{path} has no folder {FOLDER}, which its word vectors are in",
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
    """What a model is, without how its training went."""
    names = (OPTIONS_FILE, WEIGHTS_FILE) if is_elmo(source) else None
    try:
        for file in sorted(source.iterdir()):
            wanted = file.name in names if names else file.name != METRICS_FILE
            if file.is_file() and wanted and not file.name.startswith("."):
                with replacing(folder / file.name) as temporary:
                    shutil.copyfile(file, temporary)
    except OSError as error:
        raise explain(error, folder) from error
