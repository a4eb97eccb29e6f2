"""Translation: a sentence from a sentence, by an encoder and a decoder with attention."""

from __future__ import annotations

from elman.tasks.common_options import TOKENIZER, TRAINING, VOCAB_SIZE, recurrent
from elman.tasks.embeddings_option import EMBEDDINGS
from elman.tasks.task import EvaluateOption, Route, Task

TRANSLATOR = Task(
    name="translator",
    what="a translator",
    help="Train a translator: an encoder and a decoder with attention.",
    config="elman.tasks.translation.settings:TranslatorRun",
    handle="elman.tasks.translation.handle:Translator",
    module="elman.tasks.translation.task",
    uses=("elman translate FOLDER SOURCE", "elman evaluate FOLDER SOURCE TARGET"),
    data_metavar="[SOURCE TARGET]",
    data_help="Two text files, line n of one the translation of line n of the other, or the "
    "built-in kjv-asv, which is also the default.",
    files_per_text=2,
    corpus="kjv-asv",
    options=(EMBEDDINGS, TOKENIZER, VOCAB_SIZE, *recurrent("model.decoder"), *TRAINING),
    verbs={"translate": "elman.tasks.translation.command:translate"},
    routes=(
        Route(
            name="translate",
            help="The translation of a text.",
            ask="elman.tasks.translation.handle:ask",
        ),
    ),
    evaluate_options=(
        EvaluateOption(
            name="by_length",
            help="Translators: draw BLEU by the length of the source.",
            draw="elman.tasks.translation.pictures:draw_evaluations",
            rows="elman.tasks.translation.pictures:length_rows",
        ),
    ),
    files=("source_tokenizer.json",),
    onnx="elman.tasks.translation.onnx:form",
    word_vectors="elman.tasks.translation.model:word_tables",
)
