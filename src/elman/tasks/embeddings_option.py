"""The option --embeddings, which several tasks have."""

from __future__ import annotations

from elman.tasks.task import Option

EMBEDDINGS = Option(
    name="embeddings",
    setting="model.embeddings.path",
    metavar="MODEL|FILE",
    help="Pre-trained vectors beside the model's own: a run folder, published weights, or a "
    "file of word vectors.",
)


def refused_embeddings(message: str, hint: str) -> Option:
    """The option for a task that cannot use embeddings, and says why."""
    return Option(name="embeddings", metavar="", help="", refusal=(message, hint))
