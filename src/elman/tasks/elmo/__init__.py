"""ELMo: a bidirectional language model over characters, and its published files."""

from __future__ import annotations

from elman.tasks.common_options import COLUMN, TRAINING, recurrent
from elman.tasks.task import Task

ELMO = Task(
    name="elmo",
    what="a bidirectional language model",
    help="Train a bidirectional language model over characters (ELMo).",
    config="elman.tasks.elmo.settings:ElmoRun",
    handle="elman.tasks.elmo.handle:Elmo",
    module="elman.tasks.elmo.task",
    uses=(
        "elman embed FOLDER FILE --out vectors.npz",
        "elman train TASK DATA --embeddings FOLDER",
        "elman convert FOLDER OUT",
    ),
    corpus="python-docs",
    options=(COLUMN, *recurrent(), *TRAINING),
    opens="elman.tasks.elmo.files:open_published",
    published_files=("options.json", "lm_weights.hdf5"),
    convert="elman.tasks.elmo.files:convert",
    convert_help="an ELMo run becomes a folder of its published format",
    embedder="elman.tasks.elmo.model:embedder",
    word_vectors="elman.tasks.elmo.model:word_tables",
)
