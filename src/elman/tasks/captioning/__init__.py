"""Captioning: a sentence about a picture."""

from __future__ import annotations

from elman.tasks.common_options import TRAINING, recurrent
from elman.tasks.embeddings_option import refused_embeddings
from elman.tasks.task import EvaluateOption, Task

CAPTIONER = Task(
    name="captioner",
    what="a captioner",
    help="Train a captioner: image encoder, decoder with attention.",
    config="elman.tasks.captioning.settings:CaptionerRun",
    handle="elman.tasks.captioning.handle:Captioner",
    module="elman.tasks.captioning.task",
    uses=("elman caption FOLDER IMAGE...", "elman evaluate FOLDER TABLE"),
    data_metavar="TABLE",
    data_help="A TSV with columns image and sentence; the pictures lie beside it, in a folder "
    "or a zip archive called images or <table>_images.",
    options=(
        refused_embeddings("a captioner reads pictures, so it cannot use vectors of words"),
        *recurrent("model.decoder"),
        *TRAINING,
    ),
    evaluate_options=(
        EvaluateOption(
            name="pictures",
            help="Captioners: a folder with pictures, beside those near the table.",
            metavar="FOLDER",
        ),
    ),
    verbs={"caption": "elman.tasks.captioning.command:caption"},
    word_vectors="elman.tasks.word_tables:of_decoder",
)
