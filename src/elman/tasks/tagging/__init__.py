"""Tagging: a label for every word of a sentence (parts of speech, named entities)."""

from __future__ import annotations

from elman.tasks.common_options import TRAINING, recurrent
from elman.tasks.embeddings_option import EMBEDDINGS
from elman.tasks.task import Option, Route, Task

TAGGER = Task(
    name="tagger",
    what="a tagger",
    help="Train a tagger: parts of speech, named entities.",
    config="elman.tasks.tagging.settings:TaggerRun",
    handle="elman.tasks.tagging.handle:Tagger",
    module="elman.tasks.tagging.task",
    uses=("elman tag FOLDER FILE", "elman evaluate FOLDER TAGGED"),
    data_metavar="DATA...",
    data_help="CoNLL-U or column files (CoNLL-2003, WNUT), also .gz and .zst.",
    options=(
        Option(
            name="column",
            setting="data.column",
            metavar="NAME|N",
            help="The column with the tags: upos, xpos and so on of CoNLL-U, or a number from 1. "
            "[default: upos, or the last]",
        ),
        EMBEDDINGS,
        *recurrent(),
        *TRAINING,
    ),
    verbs={"tag": "elman.tasks.tagging.command:tag"},
    data_commands={"words": "elman.tasks.tagging.command:words"},
    routes=(
        Route(name="tag", help="The tag of every word."),
        Route(
            name="tag/probabilities",
            help="The tag of every word, and the probabilities of its most likely labels.",
            ask="elman.tasks.tagging.handle:ask_probabilities",
        ),
    ),
    files=("vocabulary.json",),
    onnx="elman.tasks.tagging.onnx:form",
    word_vectors="elman.tasks.tagging.model:word_tables",
    hugging_face="elman.tasks.tagging.hugging_face:FORM",
)
