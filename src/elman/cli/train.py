"""`elman train`: from data to a model, a command for each task."""

from __future__ import annotations

from typing import Annotated

import typer

from elman.cli.options import (
    Device,
    Epochs,
    Json,
    Minutes,
    Out,
    Recipe,
    Resume,
    Seed,
    Settings,
    Steps,
    Test,
    Valid,
)
from elman.cli.train_captioner import train_captioner
from elman.cli.train_classifier import train_classifier
from elman.cli.train_conditional import train_conditional
from elman.cli.train_ngram import train_ngram
from elman.cli.train_snm import train_snm
from elman.cli.train_tagger import train_tagger
from elman.cli.train_translator import train_translator
from elman.cli.training import Training

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


@app.command("maxent", help="Train a maximum-entropy model of hashed n-grams (Mikolov, 2011).")
@app.command("window", help="Train a fixed-window neural language model (Bengio and others, 2003).")
@app.command("lm", help="Train a recurrent language model.")
def train(
    context: typer.Context,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA...]",
            help="Text files (also .gz, .zst), folders, or built-in names; none: python-docs.",
            show_default=False,
        ),
    ] = None,
    valid: Valid = None,
    test: Test = None,
    recipe: Recipe = None,
    out: Out = None,
    minutes: Minutes = None,
    epochs: Epochs = None,
    steps: Steps = None,
    settings: Settings = None,
    device: Device = "auto",
    seed: Seed = None,
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Train, and print where the model is and how good it is."""
    Training(
        task=str(context.info_name),
        data=data or (),
        valid=valid or (),
        test=test or (),
        recipe=recipe,
        out=out,
        length={"minutes": minutes, "epochs": epochs, "steps": steps},
        settings=settings or (),
        device=device,
        seed=seed,
        resume=resume,
    ).run(json)
