"""Opening a model as a source of contextual word vectors, whatever it was trained as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.base.errors import UsageError
from elman.models.elmo import BidirectionalLM, ElmoEmbedder
from elman.models.embedder import Embedder, LeftContext
from elman.models.recurrent import RecurrentLM
from elman.recipes.run_folder import open_run


def open_embedder(path: Path | str, device: str = "cpu") -> Embedder:
    """The contextual word vectors of a model, in evaluation mode on `device`.

    It is a run folder, or a folder with ELMo's options.json and lm_weights.hdf5.
    """
    run = open_run(path, device)
    return embedder_of(run.model, run.tokenizer, str(path))


def embedder_of(model: Any, tokenizer: Any, name: str) -> Embedder:
    """The same of an opened model; `name` is what to call it where it has none."""
    if isinstance(model, BidirectionalLM):
        return ElmoEmbedder(model).eval().requires_grad_(False)
    if isinstance(model, RecurrentLM):
        return LeftContext(model, tokenizer).eval()
    raise UsageError(
        f"{name} has no word vectors that depend on the context",
        "name a run of `elman train elmo` or `elman train lm`",
    )
