"""The option --embeddings, which several tasks have."""

from __future__ import annotations

from elman.tasks.task import Option

EMBEDDINGS = Option(
    name="embeddings",
    setting="model.embeddings.path",
    metavar="MODEL|FILE",
    help="Pre-trained vectors to add to the model's own: a run folder, published weights, or a "
    "file of word vectors.",
)


def refused_embeddings(message: str) -> Option:
    """The option of a task that cannot use embeddings; the error message says why."""
    return Option(name="embeddings", metavar="", help="", refusal=(message, "drop --embeddings"))
