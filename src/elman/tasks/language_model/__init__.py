"""Neural language models: recurrent, fixed-window and maximum-entropy."""

from __future__ import annotations

from dataclasses import replace

from elman.tasks.common_options import (
    COLUMN,
    EMBEDDING_SIZE,
    TOKENIZER,
    TRAINING,
    VOCAB_SIZE,
    recurrent,
    sizes,
)
from elman.tasks.task import Option, Task

START = Option(
    name="start",
    flag="--from",
    setting="training.start",
    metavar="RUN",
    help="Start from the weights and tokenizer of this run.",
)
NEW_WORDS = Option(
    name="new_words",
    setting="training.new_words",
    metavar="N",
    type=int,
    minimum=1,
    help="With --from: add the words of DATA that the run does not know, if seen N times.",
)
VECTORS = Option(
    name="vectors",
    setting="model.vectors",
    metavar="FILE",
    help="A file of word vectors (word2vec, GloVe) to begin with, instead of random ones.",
)
TOKENS = (COLUMN, TOKENIZER, VOCAB_SIZE)
LM = Task(
    name="lm",
    what="a language model",
    help="Train a recurrent language model.",
    config="elman.tasks.language_model.settings:LanguageModelRun",
    handle="elman.tasks.language_model_handle:LM",
    module="elman.tasks.language_model.task",
    uses=("elman generate FOLDER PROMPT", "elman evaluate FOLDER TEXT"),
    corpus="python-docs",
    options=(START, NEW_WORDS, VECTORS, *TOKENS, *recurrent(), EMBEDDING_SIZE, *TRAINING),
    convert="elman.tasks.language_model.plain_torch:convert",
    convert_help="a recurrent language model becomes a .py file, a program that needs torch alone",
    convert_suffixes=(".py",),
    hugging_face="elman.tasks.language_model.hugging_face:FORM",
    onnx="elman.tasks.language_model.onnx:form",
    opens="elman.tasks.language_model.onnx:open_onnx_file",
    embedder="elman.models.embedder:LeftContext",
    word_vectors="elman.tasks.word_tables:of_input",
)
WINDOW = replace(
    LM,
    name="window",
    help="Train a fixed-window network (Bengio and others, 2003).",
    config="elman.tasks.language_model.settings:WindowRun",
    recipe="window-bengio",
    options=(START, NEW_WORDS, VECTORS, *TOKENS, *sizes(), EMBEDDING_SIZE, *TRAINING),
    convert_help="",
    hugging_face=None,
    onnx=None,
    opens=None,
)
MAXENT = replace(
    LM,
    name="maxent",
    help="Train a maximum-entropy model of hashed n-grams.",
    config="elman.tasks.language_model.settings:MaxEntRun",
    recipe="maxent-hashed",
    options=(START, NEW_WORDS, *TOKENS, *TRAINING),
    convert_help="",
    hugging_face=None,
    onnx=None,
    opens=None,
    embedder=None,
    word_vectors=None,
)
