"""`elman train`: from data to a model, a command for each task."""

from __future__ import annotations

import typer

from elman.cli.train_command import Training, TrainingOptions, with_training_options
from elman.tasks.captioning.train_command import train_captioner
from elman.tasks.classification.train_command import train_classifier
from elman.tasks.conditional.train_command import train_conditional
from elman.tasks.ngram.train_command import train_ngram
from elman.tasks.snm.train_command import train_snm
from elman.tasks.tagging.train_command import train_tagger
from elman.tasks.translation.train_command import train_translator
from elman.terminal.options import Test, Texts, Valid

app = typer.Typer(help="Train a model.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


app.command("ngram", help="Make an n-gram model by counting (Kneser-Ney and others).")(train_ngram)
app.command("snm", help="Make a sparse matrix model of n-grams and skip-grams (Shazeer, 2015).")(
    train_snm
)
app.command("classifier", help="Train a classifier of texts.")(train_classifier)
app.command("tagger", help="Train a tagger: parts of speech, named entities.")(train_tagger)
app.command("translator")(train_translator)
app.command("captioner")(train_captioner)
app.command("conditional")(train_conditional)


@app.command("elmo", help="Train a bidirectional language model over characters (ELMo).")
@app.command("maxent", help="Train a maximum-entropy model of hashed n-grams (Mikolov, 2011).")
@app.command("window", help="Train a fixed-window neural language model (Bengio and others, 2003).")
@app.command("lm", help="Train a recurrent language model.")
@with_training_options
def train(
    context: typer.Context,
    data: Texts = None,
    valid: Valid = None,
    test: Test = None,
    *,
    options: TrainingOptions,
) -> None:
    """Train, and print where the model is and how good it is."""
    Training(str(context.info_name), data, valid, test, options).run()
