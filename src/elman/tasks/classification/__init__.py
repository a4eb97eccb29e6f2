"""Classification: a label for a whole text (sentiment, spam, the language of a name), or for a pair
of texts (entailment, paraphrase)."""

from __future__ import annotations

from elman.tasks.common_options import TOKENIZER, TRAINING, recurrent
from elman.tasks.embeddings_option import EMBEDDINGS
from elman.tasks.task import EvaluateOption, Option, Route, Task

CLASSIFIER = Task(
    name="classifier",
    what="a classifier",
    help="Train a classifier of texts, or of pairs of texts.",
    config="elman.tasks.classification.settings:ClassifierRun",
    handle="elman.tasks.classification.handle:Classifier",
    module="elman.tasks.classification.task",
    uses=("elman classify FOLDER FILE", "elman evaluate FOLDER LABELLED"),
    data_metavar="DATA...",
    data_help="Labelled texts: .tsv, .csv, .jsonl (also .gz, .zst), or a folder with a file of "
    "texts for each label.",
    options=(
        Option(
            name="column",
            setting="data.column",
            metavar="NAME|N",
            help="The column with the labels. [default: detected]",
        ),
        Option(
            name="text_column",
            setting="data.text_column",
            metavar="NAME|N",
            help="The column with the texts. [default: detected]",
        ),
        Option(
            name="second_column",
            setting="data.second_column",
            metavar="NAME|N",
            help="Classify pairs of texts: the column with the second text of each.",
        ),
        Option(
            name="folds",
            metavar="K",
            type=int,
            minimum=2,
            help="Cross-validate: divide DATA into K parts and train K times, each time testing "
            "on another part.",
            action="elman.tasks.classification.cross_validation:cross_validate",
        ),
        EMBEDDINGS,
        TOKENIZER,
        *recurrent(),
        *TRAINING,
    ),
    verbs={"classify": "elman.tasks.classification.command:classify"},
    routes=(
        Route(name="classify", help="The label of a text, or of two texts separated by a tab."),
        Route(
            name="classify/words",
            help="How much less likely the label becomes without each word.",
            ask="elman.tasks.classification.handle:ask_words",
        ),
    ),
    evaluate_options=(
        EvaluateOption(
            name="confusion",
            help="Classifiers: draw which label is taken for which.",
            draw="elman.tasks.classification.pictures:draw_evaluations",
        ),
    ),
    files=("labels.json",),
    onnx="elman.tasks.classification.onnx:form",
    hugging_face="elman.tasks.classification.hugging_face:FORM",
    word_vectors="elman.tasks.word_tables:of_input",
)
