"""Text given a label: a language model whose state begins with a label."""

from __future__ import annotations

from elman.tasks.common_options import TOKENIZER, TRAINING, recurrent
from elman.tasks.embeddings_option import refused_embeddings
from elman.tasks.task import Task

CONDITIONAL = Task(
    name="conditional",
    what="a language model that takes a label",
    help="Train a language model conditioned on a label.",
    config="elman.tasks.conditional.settings:ConditionalRun",
    handle="elman.tasks.conditional.handle:Conditional",
    module="elman.tasks.conditional.task",
    uses=("elman generate FOLDER --label LABEL", "elman evaluate FOLDER FILE..."),
    data_metavar="[FILES...]",
    data_help="Text files, one text per line, each named for its label; or a folder of them, or a "
    "built-in name; none: surnames.",
    corpus="surnames",
    options=(
        refused_embeddings(
            "a conditional model cannot use vectors of words in context: they would reveal the "
            "words that it has to predict"
        ),
        TOKENIZER,
        *recurrent("model.decoder"),
        *TRAINING,
    ),
    word_vectors="elman.tasks.word_tables:of_decoder",
)
