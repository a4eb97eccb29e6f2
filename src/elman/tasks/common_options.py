"""Options of `elman train` for the settings that people change most; `--set` changes any other."""

from __future__ import annotations

from elman.tasks.task import Option

TOKENIZER = Option(
    name="tokenizer",
    setting="tokenizer.kind",
    file_setting="tokenizer.file",
    metavar="char|byte|word|bpe|sentencepiece|pretokenized",
    help="Kind of tokens, or a tokenizer.json or .model file. [default: by the text]",
)
COLUMN = Option(
    name="column",
    metavar="NAME",
    help="The column of tables with the text. [default: text]",
)
"""For tasks that read running text; `texts_of` in task.py reads it."""
ORDER = Option(
    name="order",
    setting="model.order",
    metavar="N",
    type=int,
    help="Length of the longest n-grams. [default: 5]",
)
VOCAB_SIZE = Option(
    name="vocab_size",
    setting="tokenizer.vocab_size",
    metavar="N",
    type=int,
    help="Largest vocabulary. [default: by the text]",
)
EMBEDDING_SIZE = Option(
    name="embedding_size",
    setting="model.embedding_size",
    metavar="N",
    type=int,
    help="Width of the embeddings.",
)
TRAINING = (
    Option(
        name="learning_rate",
        setting="optimiser.learning_rate",
        metavar="X",
        type=float,
        help="Learning rate.",
    ),
    Option(
        name="batch_size",
        setting="training.batch_size",
        metavar="N",
        type=int,
        help="Sequences in a batch.",
    ),
)


def sizes(model: str = "model") -> tuple[Option, ...]:
    """The options for the number and width of hidden layers, settings of `model`."""
    return (
        Option(
            name="num_layers",
            setting=f"{model}.num_layers",
            metavar="N",
            type=int,
            help="Number of hidden layers.",
        ),
        Option(
            name="hidden_size",
            setting=f"{model}.hidden_size",
            metavar="N",
            type=int,
            help="Units in a hidden layer.",
        ),
    )


def recurrent(model: str = "model") -> tuple[Option, ...]:
    """The options for recurrent layers, settings of `model`."""
    cell = Option(
        name="cell",
        setting=f"{model}.cell",
        metavar="lstm|gru|rnn|mingru|minlstm|sru",
        help="The recurrent cell.",
    )
    return (cell, *sizes(model))
