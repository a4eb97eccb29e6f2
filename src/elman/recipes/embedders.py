"""Opening a model as a source of contextual word vectors, whatever it was trained as."""

from __future__ import annotations

from pathlib import Path

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
    if isinstance(run.model, BidirectionalLM):
        return ElmoEmbedder(run.model).eval()
    if isinstance(run.model, RecurrentLM):
        return LeftContext(run.model, run.tokenizer).eval()
    raise UsageError(
        f"{path} has no word vectors that depend on the context",
        "name a run of `elman train elmo` or `elman train lm`",
    )
